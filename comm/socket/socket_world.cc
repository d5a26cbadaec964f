#include "comm/socket/socket_world.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "comm/socket/socket_state.h"
#include "runtime/base/error.h"
#include "runtime/base/fnv.h"

namespace millrace {
namespace {

// What who comes in says first.
struct Greeting {
  uint64_t secret = 0;  // of the door
  int64_t rank = 0;     // of who comes
};

[[noreturn]] void Fail(const char* call) {
  throw Error(ErrorCode::kComm, fmt::format("ranks over sockets: {}: {}", call, strerror(errno)));
}

// An address without a file: it ends with the process.
std::pair<sockaddr_un, socklen_t> Abstract(uint64_t name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = fmt::format("millrace-{:016x}", name);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

int NewSocket(int flags) {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (made < 0) Fail("socket");
  return made;
}

int ConnectTo(const SocketAddress& peer, int own_rank) {
  const int made = NewSocket(0);
  const auto [address, length] = Abstract(peer.name);
  const Greeting greeting{peer.secret, own_rank};
  if (connect(made, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      send(made, &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) {
    close(made);
    Fail("connect");
  }
  return made;
}

// The next of the ranks above `rank`; who does not know the secret is sent away.
std::pair<int, int> Accept(const SocketDoor& door, int rank, int world,
                           SocketClock::time_point deadline) {
  const std::string where = fmt::format("rank {}, waiting for ranks above it to connect", rank);
  while (true) {
    pollfd wait{door.descriptor(), POLLIN, 0};
    if (poll(&wait, 1, MillisecondsLeft(deadline, where)) < 0 && errno != EINTR) Fail("poll");
    const int made = accept4(door.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      Fail("accept");
    }
    // A peer sends its greeting in one piece, right away; a stranger may not keep us.
    Greeting greeting;
    pollfd said{made, POLLIN, 0};
    if (poll(&said, 1, 5000) == 1 && recv(made, &greeting, sizeof greeting, 0) == sizeof greeting &&
        greeting.secret == door.address().secret && greeting.rank > rank && greeting.rank < world)
      return {static_cast<int>(greeting.rank), made};
    close(made);
  }
}

class SocketFactory final : public CommFactory {
 public:
  SocketFactory(std::shared_ptr<SocketState> state, int rank, int world,
                const HostCommOptions& options)
      : state_(std::move(state)), rank_(rank), world_(world), options_(options) {}

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_; }

  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    const int own = CheckedGroupRank(ranks, label, rank_, world_);
    const uint64_t tag = Fnv1a64(
        fmt::format("{} of {}, number {}", label, fmt::join(ranks, ","), made_[{label, ranks}]++));
    return MakeHostCommunicator(
        MakeSocketExchange(state_, ranks, own, label, tag, options_.timeout), options_);
  }

 private:
  const std::shared_ptr<SocketState> state_;
  const int rank_, world_;
  const HostCommOptions options_;
  std::map<std::pair<std::string, std::vector<int>>, int> made_;
};

}  // namespace

SocketDoor::SocketDoor(int world_size) {
  if (getrandom(&address_, sizeof address_, 0) != sizeof address_) Fail("getrandom");
  descriptor_ = NewSocket(SOCK_NONBLOCK);
  const auto [address, length] = Abstract(address_.name);
  if (bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(descriptor_, world_size) != 0) {
    close(descriptor_);
    Fail("listen");
  }
}

SocketDoor::~SocketDoor() { close(descriptor_); }

std::unique_ptr<CommFactory> MakeSocketCommFactory(const SocketDoor& door, int rank,
                                                   const std::vector<SocketAddress>& addresses,
                                                   const HostCommOptions& options) {
  const int world = static_cast<int>(addresses.size());
  MR_CHECK(rank >= 0 && rank < world, "rank {} of a world of {}", rank, world);
  // All are here: who does not connect within a minute has gone.
  const auto deadline = SocketClock::now() + std::min<std::chrono::milliseconds>(
                                                 options.timeout, std::chrono::minutes(1));
  auto state = std::make_shared<SocketState>(world);
  for (int below = 0; below < rank; ++below)
    state->Set(below, ConnectTo(addresses[static_cast<size_t>(below)], rank));
  for (int left = world - 1 - rank; left > 0;) {
    const auto [peer, socket] = Accept(door, rank, world, deadline);
    if (state->of(peer) >= 0) {
      close(socket);
      continue;
    }
    state->Set(peer, socket);
    --left;
  }
  return std::make_unique<SocketFactory>(std::move(state), rank, world, options);
}

}  // namespace millrace
