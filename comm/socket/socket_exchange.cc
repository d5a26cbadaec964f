#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/socket/socket_state.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Ahead of each piece.
struct Header {
  uint64_t tag = 0;    // of the group
  uint32_t op = 0;     // CommOp
  uint32_t call = 0;   // of the communicator, from 0
  uint64_t bytes = 0;  // of the piece
  bool operator==(const Header&) const = default;
};

// A piece on its way to or from a peer: its header, then its bytes.
struct Transfer {
  int peer = 0;
  bool sends = false;
  Header header{};
  std::byte* data = nullptr;  // a piece that is sent is not written
  int64_t done = 0;           // of header and piece together

  int64_t total() const { return static_cast<int64_t>(sizeof header + header.bytes); }
  bool in_header() const { return done < static_cast<int64_t>(sizeof header); }
};

class SocketExchange final : public ByteExchange {
 public:
  SocketExchange(std::shared_ptr<SocketState> state, std::vector<int> ranks, int group_rank,
                 std::string label, uint64_t tag, std::chrono::milliseconds timeout)
      : state_(std::move(state)),
        ranks_(std::move(ranks)),
        rank_(group_rank),
        label_(std::move(label)),
        tag_(tag),
        timeout_(timeout) {}

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return static_cast<int>(ranks_.size()); }
  const std::string& label() const noexcept override { return label_; }
  MovedBytes moved() const noexcept override { return moved_; }
  void Abort(const std::string& reason) noexcept override { state_->Abort(reason); }

  void Exchange(CommOp op, std::span<const SendPiece> sends,
                std::span<const RecvPiece> recvs) override {
    try {
      state_->RequireUsable(Where(op));
      std::vector<Transfer> transfers;
      for (int p = 0; p < world_size(); ++p) {
        if (p == rank_) continue;
        const auto add = [&](bool outward, const std::byte* data, int64_t bytes) {
          if (bytes == 0) return;
          transfers.push_back(
              {p,
               outward,
               {tag_, static_cast<uint32_t>(op), call_, static_cast<uint64_t>(bytes)},
               const_cast<std::byte*>(data)});
        };
        add(true, sends[p].data, sends[p].bytes);
        add(false, recvs[p].data, recvs[p].bytes);
      }
      ++call_;
      Move(op, std::move(transfers));
    } catch (const Error& error) {
      state_->Abort(error.what());
      throw;
    }
  }

 private:
  std::string Where(CommOp op) const {
    return fmt::format("{} of '{}' on rank {}", Name(op), label_, rank_);
  }

  void Move(CommOp op, std::vector<Transfer> transfers) {
    const auto deadline = SocketClock::now() + timeout_;
    std::vector<pollfd> waits;
    while (true) {
      // What goes at once needs no poll: mostly all of it.
      bool moved = false;
      for (Transfer& transfer : transfers) moved |= Advance(op, transfer);
      std::erase_if(transfers, [](const Transfer& t) { return t.done == t.total(); });
      if (transfers.empty()) return;
      if (moved) continue;
      waits.clear();
      for (const Transfer& t : transfers)
        waits.push_back(
            {state_->of(ranks_[t.peer]), static_cast<short>(t.sends ? POLLOUT : POLLIN), 0});
      const std::string where =
          fmt::format("{}, waiting for rank {}", Where(op), transfers.front().peer);
      if (poll(waits.data(), waits.size(), MillisecondsLeft(deadline, where)) < 0)
        MR_REQUIRE(ErrorCode::kComm, errno == EINTR, "{}: poll: {}", where, std::strerror(errno));
      state_->RequireUsable(where);
    }
  }

  // Whether anything moved.
  bool Advance(CommOp op, Transfer& t) {
    const bool in_header = t.in_header();
    const int64_t header_bytes = sizeof t.header;
    Header received = t.header;
    auto* const begin =
        in_header ? reinterpret_cast<std::byte*>(t.sends ? &t.header : &incoming(t.peer)) + t.done
                  : t.data + (t.done - header_bytes);
    const auto bytes = static_cast<size_t>((in_header ? header_bytes : t.total()) - t.done);
    const int socket = state_->of(ranks_[t.peer]);
    const ssize_t n = t.sends ? send(socket, begin, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(socket, begin, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (n <= 0) {
      state_->RequireUsable(Where(op));
      throw Error(ErrorCode::kPeerLost,
                  fmt::format("{}: rank {} has closed its connection", Where(op), t.peer));
    }
    t.done += n;
    if (!in_header) (t.sends ? moved_.sent : moved_.received) += n;
    if (!t.sends && in_header && !t.in_header()) {
      received = incoming(t.peer);
      MR_REQUIRE(ErrorCode::kComm, received == t.header,
                 "{}: rank {} is elsewhere: it sends {} bytes in call {} of group {:x} ({}), and "
                 "{} bytes of call {} of group {:x} were expected",
                 Where(op), t.peer, received.bytes, received.call, received.tag,
                 Name(static_cast<CommOp>(received.op)), t.header.bytes, t.header.call,
                 t.header.tag);
    }
    return true;
  }

  // Where the header that is arriving from a peer is put together.
  Header& incoming(int peer) {
    if (incoming_.empty()) incoming_.resize(ranks_.size());
    return incoming_[static_cast<size_t>(peer)];
  }

  const std::shared_ptr<SocketState> state_;
  const std::vector<int> ranks_;
  const int rank_;
  const std::string label_;
  const uint64_t tag_;
  const std::chrono::milliseconds timeout_;
  uint32_t call_ = 0;
  std::vector<Header> incoming_;
  MovedBytes moved_;
};

}  // namespace

SocketState::~SocketState() {
  for (const int socket : sockets_)
    if (socket >= 0) close(socket);
}

void SocketState::Abort(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    try {
      reason_ = why;
    } catch (...) {  // a reason is not worth an end
    }
    aborted_ = true;
  }
  for (const int socket : sockets_)
    if (socket >= 0) shutdown(socket, SHUT_RDWR);
}

void SocketState::RequireUsable(const std::string& where) {
  if (!aborted_) return;
  const std::lock_guard lock(mutex_);
  throw Error(ErrorCode::kPeerLost, fmt::format("{}: aborted: {}", where, reason_));
}

int MillisecondsLeft(SocketClock::time_point deadline, const std::string& where) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SocketClock::now()).count();
  MR_REQUIRE(ErrorCode::kTimeout, left > 0, "{}: it has not come in time", where);
  return static_cast<int>(std::min<int64_t>(left, 1 << 30));
}

std::unique_ptr<ByteExchange> MakeSocketExchange(std::shared_ptr<SocketState> state,
                                                 std::vector<int> ranks, int group_rank,
                                                 std::string label, uint64_t tag,
                                                 std::chrono::milliseconds timeout) {
  return std::make_unique<SocketExchange>(std::move(state), std::move(ranks), group_rank,
                                          std::move(label), tag, timeout);
}

}  // namespace millrace
