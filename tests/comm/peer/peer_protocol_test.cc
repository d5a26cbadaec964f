// The protocols of comm/peer/peer_call.h and peer_packs.h, as machines of which all interleavings
// are walked, several calls one behind the other.
//
// What is modelled: words and operands change at once and for all, which release and acquire grant
// where a word is waited for, and words of packs by themselves. What is proved: no rank is stuck
// before the last call has ended; nothing is read before it is there, or overwritten before it was
// read. And that leaving out a wait, or one of two slots, would be seen.
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/peer/peer_call.h"
#include "comm/peer/peer_packs.h"
#include "runtime/base/arithmetic.h"

namespace millrace {
namespace {

constexpr int kMost = 3;  // ranks

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
// A machine of `world` ranks and all states that it comes to.
template <class Rank>
class Machine {
 public:
  explicit Machine(int world) : world_(world) {}
  virtual ~Machine() = default;

  // The first thing that goes wrong, or "".
  std::string Run() {
    open_ = {State{}};
    seen_.insert(Key(open_.back()));
    while (!open_.empty() && trouble_.empty()) {
      const State state = open_.back();
      open_.pop_back();
      const size_t before = successors_;
      for (int r = 0; r < world_; ++r)
        if (!HasEnded(state[r])) Step(state, r);
      bool ended = true;
      for (int r = 0; r < world_; ++r) ended = ended && HasEnded(state[r]);
      if (successors_ == before && !ended) trouble_ = "stuck";
      ends_ += ended;
    }
    return trouble_;
  }
  size_t states() const { return seen_.size(); }
  int ends() const { return ends_; }

 protected:
  using State = std::array<Rank, kMost>;

  // All that rank r, which has not ended, may do next: Add, or Fail.
  virtual void Step(const State& state, int r) = 0;
  virtual bool HasEnded(const Rank& rank) const = 0;

  void Add(const State& state) {
    ++successors_;
    if (seen_.insert(Key(state)).second) open_.push_back(state);
  }
  void Fail(const std::string& what, int call, int expected) {
    trouble_ = what + " is of call " + std::to_string(call) + ", not " + std::to_string(expected);
  }

  const int world_;

 private:
  static std::string Key(const State& state) {
    return {reinterpret_cast<const char*>(state.data()), sizeof(State)};
  }

  std::vector<State> open_;
  std::unordered_set<std::string> seen_;
  size_t successors_ = 0;
  int ends_ = 0;
  std::string trouble_;
};

// peer_call.h: one block per rank (blocks of different numbers share nothing), a thread per peer as
// in the kernels.
class Walk : public Machine<Rank> {
 public:
  Walk(int world, Move move, int calls, PeerFault fault)
      : Machine(world), move_(move), calls_(calls), fault_(fault) {}

 private:
  bool HasEnded(const Rank& rank) const override { return rank.call > calls_; }

  void Step(const State& state, int r) override {
    const Rank& own = state[r];
    State next = state;
    switch (own.place) {
      case kProduce:  // overwrites what the last call's peers have pulled
        next[r].operand = own.call;
        Enter(next[r], kEnter);
        return Add(next);
      case kConsume:  // reads what was pushed; what was pulled is checked there
        for (int p = 0; p < world_; ++p)
          if (move_ == Move::kPush && p != r && own.slots[p] != own.call)
            Fail("a slot that is consumed", own.slots[p], own.call);
        ++next[r].call;
        next[r].place = kProduce;
        return Add(next);
      default:
        for (int p = 0; p < world_; ++p)
          if (p != r) WithPeer(state, r, p);
    }
  }

  void WithPeer(const State& state, int r, int p) {
    const Rank& own = state[r];
    if (own.threads[p] == kSeen) return;
    State next = state;
    next[r].threads[p] = own.threads[p] == kBegun ? kTold : kSeen;
    if (own.place == kMoving) {
      next[r].threads[p] = kSeen;
      if (move_ == Move::kPush) next[p].slots[r] = own.call;
      if (move_ == Move::kPull && state[p].operand != own.call)
        Fail("an operand that is pulled", state[p].operand, own.call);
    } else if (own.threads[p] == kBegun) {
      (own.place == kEnter ? next[p].entered : next[p].done)[r] = own.call;
    } else {
      const bool waits = fault_ != (own.place == kEnter ? PeerFault::kNoEntry : PeerFault::kNoDone);
      if (waits && (own.place == kEnter ? own.entered : own.done)[p] < own.call) return;
    }
    bool all = true;  // the block's barrier
    for (int q = 0; q < world_; ++q) all = all && (q == r || next[r].threads[q] == kSeen);
    if (all) Enter(next[r], static_cast<Place>(own.place + 1));
    Add(next);
  }

  static void Enter(Rank& rank, Place place) {
    rank.place = place;
    rank.threads = {};
  }

  const Move move_;
  const int calls_;
  const PeerFault fault_;
};

// peer_packs.h: two blocks, which have threads of their own for the words by which they enter and
// for each pack. A launch has so many of them; one without packs is another call of the lane.
struct Launch {
  int blocks = 1, packs = 0;
};
constexpr int kBlocks = 2, kPacks = 2;

struct PackRank {
  uint8_t launch = 0;                                         // the current one
  std::array<uint8_t, kBlocks> calls{};                       // that a block has completed
  std::array<std::array<uint8_t, kMost>, kBlocks> entered{};  // words, by block and writer
  struct Word {
    uint8_t number = 0, call = 0;  // of its block; of all
  };
  // By [block][pack of it], slot, writer.
  std::array<std::array<std::array<Word, kMost>, kPackSlots>, kBlocks * kPacks> staging{};
  // Thread, by peer: of the words of blocks, then of packs.
  std::array<std::array<uint8_t, kMost>, kBlocks + kPacks> threads{};
};

enum class PackFault { kNone, kNoEntry, kNoWait, kOneSlot, kRegionsOfPacks };

class PackWalk : public Machine<PackRank> {
 public:
  PackWalk(int world, std::vector<Launch> launches, PackFault fault)
      : Machine(world), launches_(std::move(launches)), fault_(fault) {}

 private:
  bool HasEnded(const PackRank& rank) const override { return rank.launch == launches_.size(); }

  void Step(const State& state, int r) override {
    const Launch& launch = launches_[state[r].launch];
    for (int p = 0; p < world_; ++p) {
      if (p == r) continue;
      for (int b = 0; b < launch.blocks; ++b) Enters(state, r, p, b);
      for (int i = 0; i < launch.packs; ++i) Moves(state, r, p, i);
    }
  }

  static uint8_t Number(const PackRank& rank, int block) {
    return static_cast<uint8_t>(rank.calls[block] + 1);
  }

  void Enters(const State& state, int r, int p, int block) {
    const PackRank& own = state[r];
    const uint8_t thread = own.threads[block][p], number = Number(own, block);
    const bool waits = fault_ != PackFault::kNoEntry && own.entered[block][p] < number;
    if (thread == kSeen || (thread == kTold && waits)) return;
    State next = state;
    if (thread == kBegun) next[p].entered[block][r] = number;
    Advance(next, r, next[r].threads[block][p]);
  }

  void Moves(const State& state, int r, int p, int pack) {
    const PackRank& own = state[r];
    const Launch& launch = launches_[own.launch];
    const int each = launch.packs / launch.blocks, block = pack / each;
    const int place = fault_ == PackFault::kRegionsOfPacks ? pack : block * kPacks + pack % each;
    const uint8_t thread = own.threads[kBlocks + pack][p], number = Number(own, block);
    const int slot = fault_ == PackFault::kOneSlot ? 0 : number % kPackSlots;
    const auto call = static_cast<uint8_t>(own.launch + 1);
    const PackRank::Word& word = own.staging[place][slot][p];
    if (thread == kSeen) return;
    if (thread == kTold && word.number != number && fault_ != PackFault::kNoWait) return;
    State next = state;
    if (thread == kBegun) next[p].staging[place][slot][r] = {number, call};
    if (thread == kTold && word.call != call) Fail("a pack that is added", word.call, call);
    Advance(next, r, next[r].threads[kBlocks + pack][p]);
  }

  // A launch ends when all its threads have seen all that they wait for.
  void Advance(State& next, int r, uint8_t& thread) {
    ++thread;
    PackRank& own = next[r];
    const Launch& launch = launches_[own.launch];
    bool all = true;
    for (int p = 0; p < world_; ++p) {
      if (p == r) continue;
      for (int b = 0; b < launch.blocks; ++b) all = all && own.threads[b][p] == kSeen;
      for (int i = 0; i < launch.packs; ++i) all = all && own.threads[kBlocks + i][p] == kSeen;
    }
    if (all) {
      for (int b = 0; b < launch.blocks; ++b) ++own.calls[b];
      ++own.launch;
      own.threads = {};
    }
    Add(next);
  }

  const std::vector<Launch> launches_;
  const PackFault fault_;
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

// Launches of one block and of two, with another call between them; three ranks have one block.
const std::vector<Launch> kTwoRanks = {{1, 2}, {2, 2}, {1, 0}, {2, 2}, {1, 1}, {2, 2}},
                          kThreeRanks = {{1, 1}, {1, 1}, {1, 1}};

TEST_CASE("whatever the order of arrival, packs are those of their call", "[comm][peer]") {
  for (const int world : {2, 3}) {
    PackWalk walk(world, world == 2 ? kTwoRanks : kThreeRanks, PackFault::kNone);
    CAPTURE(world);
    CHECK(walk.Run() == "");
    CHECK(walk.ends() > 0);
    CHECK(walk.states() > 1000);
  }
}

TEST_CASE("packs need their waits, two slots and regions of their blocks", "[comm][peer]") {
  for (const int world : {2, 3}) {
    CAPTURE(world);
    const std::vector<Launch>& launches = world == 2 ? kTwoRanks : kThreeRanks;
    CHECK(PackWalk(world, launches, PackFault::kNoWait).Run().find("added is of call 0, not 1") !=
          std::string::npos);
    // A peer stores the next call's pack over one that this rank has yet to read, and waits for.
    CHECK(PackWalk(world, launches, PackFault::kOneSlot).Run() == "stuck");
  }
  // So it does behind a call without packs that it has not waited in.
  CHECK(PackWalk(2, kTwoRanks, PackFault::kNoEntry).Run() == "stuck");
  // The second block's first call finds what the first block's first call has left.
  CHECK(
      PackWalk(2, kTwoRanks, PackFault::kRegionsOfPacks).Run().find("added is of call 1, not 2") !=
      std::string::npos);
}

TEST_CASE("packs have room in staging memory, and every block has some", "[comm][peer]") {
  for (int world = 2; world <= kMaxPeers; ++world)
    for (const int blocks : {1, 2, kPeerAllReduceBlocks, kMaxPeerBlocks}) {
      CAPTURE(world, blocks);
      const int64_t room = PackRoom(world, blocks), most = MostPackedBytes(world, blocks);
      CHECK(blocks * kPackSlots * (world - 1) * room * kPackBytes <= kStagingBytes);
      CHECK(most == blocks * room * kPackElementBytes);
      int64_t wrong = 0;
      for (int64_t bytes = 1; bytes <= most; bytes += 1 + bytes % 7) {
        const int64_t used = PackBlocks(bytes, world, blocks);
        const int64_t packs = CeilDiv(bytes, kPackElementBytes), each = CeilDiv(packs, used);
        wrong += used < 1 || used > blocks || each > room || (used - 1) * each >= packs;
      }
      CHECK(wrong == 0);
      CHECK(PackBlocks(most, world, blocks) == blocks);
    }
  CHECK(MostPackedBytes(2, kPeerAllReduceBlocks) == 496 << 10);
  CHECK(MostPackedBytes(8, kPeerAllReduceBlocks) > 70 << 10);
  CHECK(PackBlocks(8 << 10, 2, kPeerAllReduceBlocks) == 2);
}

}  // namespace
}  // namespace millrace
