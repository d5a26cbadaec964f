// The byte exchange between threads: each rank publishes its pieces, each peer copies its own out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/byte_exchange.h"

namespace millrace {

// What the ranks of one group share. Lock order: no other lock is taken while `mutex` is held.
struct LocalGroup {
  LocalGroup(int world, std::string group_label)
      : label(std::move(group_label)), ranks(static_cast<size_t>(world)) {
    for (Rank& r : ranks) r.sends.resize(static_cast<size_t>(world));
  }

  struct Rank {
    std::vector<SendPiece> sends;  // of exchange number `posted`, one per peer
    CommOp op = CommOp::kBarrier;  // of that exchange
    int64_t posted = 0;            // number of the last exchange published
    int64_t copied = 0;            // number of the last exchange whose pieces it has copied
    int64_t taken_bytes = 0;       // that peers have copied out of its pieces, in all exchanges
    bool gone = false;             // its communicator has been destroyed
  };

  // Marks the group aborted; the first reason stays.
  void Abort(const std::string& reason) noexcept;

  const std::string label;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Rank> ranks;
  // Copies under way from published pieces. A rank that leaves on an error waits for 0, since its
  // caller may free those pieces; none starts after an abort.
  int copying = 0;
  bool aborted = false;
  std::string reason;
};

// `abort_world` aborts every group of the world, this one included; called without locks held.
std::unique_ptr<ByteExchange> MakeLocalExchange(
    std::shared_ptr<LocalGroup> group, int rank, std::chrono::milliseconds timeout,
    std::function<void(const std::string& reason)> abort_world);

}  // namespace millrace
