// The sockets of a rank, which its communicators share. Private to this folder.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/byte_exchange.h"

namespace millrace {

using SocketClock = std::chrono::steady_clock;

class SocketState {
 public:
  explicit SocketState(int world_size) : sockets_(static_cast<size_t>(world_size), -1) {}
  ~SocketState();
  SocketState(const SocketState&) = delete;
  SocketState& operator=(const SocketState&) = delete;

  int of(int rank) const { return sockets_[static_cast<size_t>(rank)]; }
  void Set(int rank, int socket) { sockets_[static_cast<size_t>(rank)] = socket; }

  // Any thread. The descriptors stay open until the end: a rank may be asleep on them.
  void Abort(const std::string& why) noexcept;
  // Error(kPeerLost) behind an abort.
  void RequireUsable(const std::string& where);

 private:
  std::vector<int> sockets_;  // by world rank
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::string reason_;
};

// Error(kTimeout) naming `where`; else the milliseconds that are left, for poll().
int MillisecondsLeft(SocketClock::time_point deadline, const std::string& where);

// `ranks`: the world ranks of the group. `tag` is equal on its members, and another one for each
// group.
std::unique_ptr<ByteExchange> MakeSocketExchange(std::shared_ptr<SocketState> state,
                                                 std::vector<int> ranks, int group_rank,
                                                 std::string label, uint64_t tag,
                                                 std::chrono::milliseconds timeout);

}  // namespace millrace
