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

    // What it sleeps for: that `*awaited` is at least `number`. Who brings that about wakes it, and
    // nobody else does: threads that all wake at every step of every rank cost a third of the
    // processor time of a run of four small ranks. Null: it does not sleep.
    const int64_t* awaited = nullptr;
    int64_t number = 0;
    std::condition_variable woken;
  };

  // Marks the group aborted; the first reason stays.
  void Abort(const std::string& reason) noexcept;
  // Wakes those that sleep for `progress`, which has changed; every rank. `mutex` is held.
  void Wake(const int64_t& progress);
  void WakeAll();

  const std::string label;
  std::mutex mutex;
  std::vector<Rank> ranks;
  // Copies under way from published pieces. A rank that leaves on an error waits for 0, since its
  // caller may free those pieces; none starts after an abort.
  int copying = 0;
  std::condition_variable copied;  // after an abort: `copying` is 0
  bool aborted = false;
  std::string reason;
};

// `abort_world` aborts every group of the world, this one included; called without locks held.
std::unique_ptr<ByteExchange> MakeLocalExchange(
    std::shared_ptr<LocalGroup> group, int rank, std::chrono::milliseconds timeout,
    std::function<void(const std::string& reason)> abort_world);

}  // namespace millrace
