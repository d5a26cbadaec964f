// The byte exchange over MPI: messages between pairs of ranks, polled without blocking, so that
// every wait has a time-out and idle ranks leave the cores to the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/byte_exchange.h"
#include "comm/mpi/mpi_state.h"

namespace millrace {

enum class CommOwnership { kOwned, kBorrowed };

struct MpiExchangeSpec {
  MPI_Comm comm = MPI_COMM_NULL;
  CommOwnership ownership = CommOwnership::kOwned;  // kOwned: freed with the exchange
  std::vector<int> peers;  // rank i of the exchange is rank peers[i] of `comm`
  int own_rank = 0;        // this process's i
  std::string label;
  std::chrono::milliseconds timeout;
  int64_t max_message_bytes = 0;  // in [1, INT_MAX]
};

// A time-out leaves receives cancelled but sends pending: their bytes must stay readable until the
// process ends, which the failed communicator sees to (~MpiRuntime aborts).
std::unique_ptr<ByteExchange> MakeMpiExchange(std::shared_ptr<MpiRuntime::State> mpi,
                                              MpiExchangeSpec spec);

}  // namespace millrace
