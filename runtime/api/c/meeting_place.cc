#include "runtime/api/c/meeting_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/process_id.h"
#include "comm/socket/socket_world.h"
#include "runtime/api/backend.h"
#include "runtime/api/c/mpi_exchange.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/base/host_name.h"

namespace millrace {
namespace {

// What each rank tells the others first.
struct Ticket {
  uint32_t magic = kMagic;
  int32_t rank = 0, ranks = 0;
  int32_t cuda = 0;  // 1: its library is that of CUDA
  uint64_t process = 0;
  uint64_t world = 0;       // of rank 0: its number in the lobby
  SocketAddress door;       // where other processes of its host find it
  char host[64] = {};       // its beginning
  int32_t refused = MR_OK;  // the code of what this rank has to say against its own arguments
  char why[252] = {};       // and the beginning of its words

  static constexpr uint32_t kMagic = 0x4d520004;  // "MR", and the version of this struct
};

// Worlds of this process that wait for their ranks, by number: an address would be dangling where
// the exchange has failed on rank 0 alone.
class Lobby {
 public:
  uint64_t Enter(const std::shared_ptr<LocalWorld>& world) {
    const std::lock_guard lock(mutex_);
    std::erase_if(worlds_, [](const auto& entry) { return entry.second.expired(); });
    worlds_[++last_] = world;
    return last_;
  }
  std::shared_ptr<LocalWorld> Find(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = worlds_.find(number);
    return found == worlds_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<LocalWorld>> worlds_;
  uint64_t last_ = 0;
};

Lobby& TheLobby() {
  static Lobby* const lobby = new Lobby;  // threads may outlive static objects
  return *lobby;
}

template <class T>
std::vector<T> Gathered(const mr_run_options& options, const T& own) {
  std::vector<T> all(static_cast<size_t>(options.world));
  all[static_cast<size_t>(options.rank)] = own;
  mr_status* const status = options.exchange(options.user, all.data(), sizeof(T));
  if (status == nullptr) return all;
  const CallError error(mr_status_code(status),
                        fmt::format("exchange: {}", mr_status_message(status)));
  mr_status_free(status);
  throw error;
}

// Ranks of the two libraries have no memory in common to meet in.
void RequireOneLibrary(const std::vector<Ticket>& tickets) {
  const auto words = [](const Ticket& ticket) { return ticket.cuda != 0 ? "CUDA" : "the CPU"; };
  for (const Ticket& ticket : tickets)
    if (ticket.cuda != tickets.front().cuda)
      throw CallError(
          MR_INVALID_ARGUMENT,
          fmt::format("rank 0 has the library for {}, and rank {} that for {}: all have "
                      "the same execution.backend, and libmillrace_cuda.so where it is "
                      "cuda",
                      words(tickets.front()), ticket.rank, words(ticket)));
}

void RequireTheirTickets(const std::vector<Ticket>& tickets) {
  for (size_t r = 0; r < tickets.size(); ++r) {
    const Ticket& ticket = tickets[r];
    if (ticket.magic != Ticket::kMagic || ticket.rank != static_cast<int32_t>(r) ||
        ticket.ranks != static_cast<int32_t>(tickets.size()))
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("exchange: piece {} of {} is not rank {}'s of a world of {}", r,
                                  tickets.size(), r, tickets.size()));
  }
}

void RequireOneHost(const std::vector<Ticket>& tickets) {
  for (const Ticket& ticket : tickets)
    if (std::string_view(ticket.host) != tickets.front().host)
      throw CallError(
          MR_UNSUPPORTED,
          fmt::format("rank 0 is on {}, and rank {} on {}: this library has no transport "
                      "between hosts; `millrace train` under mpirun has",
                      tickets.front().host, ticket.rank, ticket.host));
}

// Of the lowest rank that refuses.
void RequireNoneRefuses(const std::vector<Ticket>& tickets) {
  for (const Ticket& ticket : tickets)
    if (ticket.refused != MR_OK)
      throw CallError(ticket.refused, fmt::format("rank {}: {}", ticket.rank, ticket.why));
}

// What `check` throws; null: nothing.
std::exception_ptr ThrownBy(const std::function<void()>& check) {
  try {
    check();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void SayOn(Ticket& ticket, const std::exception_ptr& refusal) {
  mr_status* const status = Guarded([&] { std::rethrow_exception(refusal); });
  ticket.refused = mr_status_code(status);
  std::string_view(mr_status_message(status)).copy(ticket.why, sizeof ticket.why - 1);
  mr_status_free(status);
}

std::unique_ptr<CommFactory> Meet(const mr_run_options& options,
                                  const std::function<void()>& check) {
  if (options.world == 1) {
    check();
    return LocalWorld(1).Factory(0);
  }
  if (options.exchange == nullptr)
    throw CallError(MR_INVALID_ARGUMENT,
                    fmt::format("world is {}, and exchange is NULL: ranks need it to find each "
                                "other",
                                options.world));
  std::shared_ptr<LocalWorld> world;
  if (options.rank == 0) world = std::make_shared<LocalWorld>(options.world);
  const uint64_t number = world ? TheLobby().Enter(world) : 0;
  const SocketDoor door(options.world);
  Ticket own{.rank = options.rank,
             .ranks = options.world,
             .cuda = CudaBuiltIn() ? 1 : 0,
             .process = ProcessId(),
             .world = number,
             .door = door.address()};
  const std::string host = HostName();
  host.copy(own.host, sizeof own.host - 1);
  const std::exception_ptr refusal = ThrownBy(check);
  if (refusal) SayOn(own, refusal);
  const std::vector<Ticket> tickets = Gathered(options, own);
  if (refusal) std::rethrow_exception(refusal);
  RequireTheirTickets(tickets);
  RequireNoneRefuses(tickets);
  RequireOneHost(tickets);
  RequireOneLibrary(tickets);
  if (const auto elsewhere = [&](const Ticket& t) { return t.process != own.process; };
      std::any_of(tickets.begin(), tickets.end(), elsewhere)) {
    Gathered<int32_t>(options, options.rank);  // all have come this far, and will connect
    std::vector<SocketAddress> doors;
    for (const Ticket& ticket : tickets) doors.push_back(ticket.door);
    return MakeSocketCommFactory(door, options.rank, doors);
  }
  if (!world) world = TheLobby().Find(tickets.front().world);
  if (!world)
    throw CallError(MR_PEER_LOST, "rank 0 has left mr_run_create, its exchange has failed");
  Gathered<int32_t>(options, options.rank);  // each has the world by now, so rank 0 may go on
  return world->Factory(options.rank);
}

}  // namespace

std::unique_ptr<CommFactory> MeetOtherRanks(const mr_run_options& options,
                                            const std::function<void()>& check) {
  if (options.mpi == nullptr) return Meet(options, check);
  const auto own = [&] {
    if (options.exchange != nullptr || options.rank != 0 || options.world != 1)
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("options.mpi is not NULL, and rank {}, world {}, exchange {}: "
                                  "with MPI they are 0, 0 and NULL",
                                  options.rank, options.world,
                                  options.exchange == nullptr ? "NULL" : "not NULL"));
    check();
  };
  std::optional<MpiExchange> mpi;
  try {
    mpi.emplace(ReadSized(options.mpi, "options.mpi"));
  } catch (...) {
    own();  // what is wrong with the arguments comes first; nobody can be told
    throw;
  }
  mr_run_options met = options;
  met.rank = mpi->rank();
  met.world = mpi->world();
  met.exchange = MpiExchange::Exchange;
  met.user = &*mpi;
  return Meet(met, own);
}

}  // namespace millrace
