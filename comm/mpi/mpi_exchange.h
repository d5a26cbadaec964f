// The byte exchange over MPI: messages between pairs of ranks, polled without blocking, so that every wait
// has a time-out and idle ranks leave the cores to the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/byte_exchange.h"
#include "comm/host_collectives.h"
#include "comm/mpi/mpi_state.h"

namespace millrace {

// Longest single message; MPI counts in int.
inline constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

// Rank i of the exchange is rank peers[i] of `comm`, and own_rank is this process's i. Takes over `comm`
// unless `owned` is false.
//
// A time-out leaves receives cancelled but sends pending: their bytes must stay readable until the process
// ends, which the failed communicator sees to (~MpiRuntime aborts).
enum class CommOwnership { kOwned, kBorrowed };
std::unique_ptr<ByteExchange> MakeMpiExchange(std::shared_ptr<MpiRuntime::State> mpi, MPI_Comm comm,
                                              CommOwnership ownership, std::vector<int> peers, int own_rank,
                                              const std::string& label, const HostCommOptions& options);

}  // namespace millrace
