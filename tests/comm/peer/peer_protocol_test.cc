// The protocol of comm/peer/peer_call.h, as a machine of which all interleavings are walked: one
// block per rank (blocks of different numbers share nothing), a thread per peer as in the kernels,
// several calls one behind the other.
//
// What is modelled: words and operands change at once and for all, which release and acquire grant
// where a word is waited for. What is proved: no rank is stuck before the last call has ended;
// nothing is read before it is there, or overwritten before it was read. And that leaving out
// either wait would be seen.
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/peer/peer_call.h"

namespace millrace {
namespace {

constexpr int kMost = 4;  // ranks

enum class Move { kPush, kPull };

// What a thread has done of a step that each thread does with its own peer.
enum Thread : uint8_t { kBegun, kTold, kSeen };

enum Place : uint8_t { kProduce, kEnter, kMoving, kLeave, kConsume };

struct Rank {
  uint8_t call = 1;  // number of the current one
  Place place = kProduce;
  std::array<uint8_t, kMost>
      threads{};        // by peer: Thread; or, while moving, whether that peer's part was moved
  uint8_t operand = 0;  // of which call; what peers pull
  std::array<uint8_t, kMost> slots{};            // of which call, by source; what peers push
  std::array<uint8_t, kMost> entered{}, done{};  // words, by writer
};
using State = std::array<Rank, kMost>;

class Walk {
 public:
  Walk(int world, Move move, int calls, PeerFault fault)
      : world_(world), move_(move), calls_(calls), fault_(fault) {}

  // The first thing that goes wrong, or "".
  std::string Run() {
    std::vector<State> open = {State{}};
    seen_.insert(Key(open.back()));
    while (!open.empty() && trouble_.empty()) {
      const State state = open.back();
      open.pop_back();
      const size_t before = successors_;
      for (int r = 0; r < world_; ++r) Step(state, r, open);
      bool ended = true;
      for (int r = 0; r < world_; ++r) ended = ended && state[r].call > calls_;
      if (successors_ == before && !ended) trouble_ = "stuck";
      ends_ += ended;
    }
    return trouble_;
  }
  size_t states() const { return seen_.size(); }
  int ends() const { return ends_; }

 private:
  static std::string Key(const State& state) {
    return {reinterpret_cast<const char*>(state.data()), sizeof(State)};
  }

  void Add(const State& state, std::vector<State>& open) {
    ++successors_;
    if (seen_.insert(Key(state)).second) open.push_back(state);
  }

  // All that rank r may do next.
  void Step(const State& state, int r, std::vector<State>& open) {
    const Rank& own = state[r];
    if (own.call > calls_) return;
    State next = state;
    switch (own.place) {
      case kProduce:  // overwrites what the last call's peers have pulled
        next[r].operand = own.call;
        Enter(next[r], kEnter, r);
        return Add(next, open);
      case kConsume:  // reads what was pushed; what was pulled is checked there
        for (int p = 0; p < world_; ++p)
          if (move_ == Move::kPush && p != r && own.slots[p] != own.call)
            trouble_ = "a slot that is consumed is of call " + std::to_string(own.slots[p]) +
                       ", not " + std::to_string(own.call);
        ++next[r].call;
        next[r].place = kProduce;
        return Add(next, open);
      default:
        for (int p = 0; p < world_; ++p)
          if (p != r) WithPeer(state, r, p, open);
    }
  }

  void WithPeer(const State& state, int r, int p, std::vector<State>& open) {
    const Rank& own = state[r];
    if (own.threads[p] == kSeen) return;
    State next = state;
    next[r].threads[p] = own.threads[p] == kBegun ? kTold : kSeen;
    if (own.place == kMoving) {
      next[r].threads[p] = kSeen;
      if (move_ == Move::kPush) next[p].slots[r] = own.call;
      if (move_ == Move::kPull && state[p].operand != own.call)
        trouble_ = "an operand that is pulled is of call " + std::to_string(state[p].operand) +
                   ", not " + std::to_string(own.call);
    } else if (own.threads[p] == kBegun) {
      (own.place == kEnter ? next[p].entered : next[p].done)[r] = own.call;
    } else {
      const bool waits = fault_ != (own.place == kEnter ? PeerFault::kNoEntry : PeerFault::kNoDone);
      if (waits && (own.place == kEnter ? own.entered : own.done)[p] < own.call) return;
    }
    bool all = true;  // the block's barrier
    for (int q = 0; q < world_; ++q) all = all && (q == r || next[r].threads[q] == kSeen);
    if (all) Enter(next[r], static_cast<Place>(own.place + 1), r);
    Add(next, open);
  }

  static void Enter(Rank& rank, Place place, int) {
    rank.place = place;
    rank.threads = {};
  }

  const int world_;
  const Move move_;
  const int calls_;
  const PeerFault fault_;
  std::unordered_set<std::string> seen_;
  size_t successors_ = 0;
  int ends_ = 0;
  std::string trouble_;
};

TEST_CASE("whatever the order of arrival, calls end and nothing is read too early or too late",
          "[comm][peer]") {
  for (const Move move : {Move::kPush, Move::kPull})
    for (const auto& [world, calls] : {std::pair{2, 4}, std::pair{3, 3}}) {
      Walk walk(world, move, calls, PeerFault::kNone);
      CAPTURE(static_cast<int>(move), world, calls);
      CHECK(walk.Run() == "");
      CHECK(walk.ends() > 0);
      CHECK(walk.states() > 100);
    }
}

TEST_CASE("each of the two waits is needed", "[comm][peer]") {
  for (const int world : {2, 3}) {
    CAPTURE(world);
    // A peer stores the next call's bytes over those that this rank has yet to read.
    CHECK(Walk(world, Move::kPush, 2, PeerFault::kNoEntry)
              .Run()
              .find("consumed is of call 2, not 1") != std::string::npos);
    CHECK(Walk(world, Move::kPush, 2, PeerFault::kNoDone)
              .Run()
              .find("consumed is of call 0, not 1") != std::string::npos);
    CHECK(
        Walk(world, Move::kPull, 2, PeerFault::kNoEntry).Run().find("pulled is of call 0, not 1") !=
        std::string::npos);
    // This rank overwrites what a peer has yet to pull.
    CHECK(
        Walk(world, Move::kPull, 2, PeerFault::kNoDone).Run().find("pulled is of call 2, not 1") !=
        std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
