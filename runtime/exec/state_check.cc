#include "runtime/exec/state_check.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <string_view>

#include "comm/comm_set.h"
#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/observe/progress.h"

namespace millrace {
namespace {

// A slot in people's words; of a rule that has none here, the slot's name.
std::string WordsOf(std::string_view slot) {
  if (slot == "master") return "master weights";
  if (slot == "adam_m") return "first moments";
  if (slot == "adam_v") return "second moments";
  if (slot == "muon_m") return "momentum";
  return std::string(slot);
}

// f(slot, flat) for all shards in order.
template <class F>
void ForEachShard(const Engine& engine, F&& f) {
  for (const auto& [slot, flat] : SavedSlots(engine.layout())) {
    f(slot.name, flat);
    if (engine.marks() != nullptr) engine.marks()->Tick();  // large ones take their time
  }
}

}  // namespace

std::vector<std::string> HashShards(Engine& engine) {
  std::vector<std::string> hashes;
  ForEachShard(engine, [&](std::string_view slot, FlatId flat) {
    const std::vector<float> shard = engine.ReadShard(slot, flat);
    hashes.push_back(Hash128(shard.data(), static_cast<int64_t>(shard.size() * sizeof(float))));
  });
  return hashes;
}

std::string FirstDifference(const ShardLayout& layout, const std::vector<std::string>& a,
                            const std::vector<std::string>& b) {
  const std::vector<FlatSlot> slots = SavedSlots(layout);
  MR_CHECK(a.size() == b.size() && a.size() == slots.size(), "hashes of {} and {} shards", a.size(),
           b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i])
      return fmt::format("{} of unit {}", WordsOf(slots[i].slot.name),
                         layout.flat(slots[i].flat).name);
  return "";
}

std::string DifferingReplicas(Engine& engine) {
  const Mesh& mesh = engine.comms().mesh();
  const std::vector<std::string> mine = HashShards(engine);
  std::vector<std::vector<std::string>> ranks;
  for (const std::string& joined :
       engine.comms().world().HostAllGather(fmt::format("{}", fmt::join(mine, "")))) {
    std::vector<std::string>& hashes = ranks.emplace_back();
    const size_t length = mine.front().size();
    for (size_t at = 0; at < joined.size(); at += length)
      hashes.push_back(joined.substr(at, length));
  }
  for (const int first : mesh.Group(0, AxisSet::All() - Axis::kReplicate)) {
    std::map<std::vector<std::string>, std::vector<int>> holders;
    const std::vector<int> group = mesh.Group(first, Axis::kReplicate);
    for (const int rank : group) holders[ranks[static_cast<size_t>(rank)]].push_back(rank);
    if (holders.size() == 1) continue;
    // What most hold is taken for right; of two, what rank 0's replica holds.
    const std::vector<int>* right = &holders.at(ranks[static_cast<size_t>(group.front())]);
    for (const auto& [hashes, who] : holders)
      if (who.size() > right->size()) right = &who;
    for (const auto& [hashes, who] : holders) {
      if (&who == right) continue;
      const int rank = who.front(), other = right->front();
      return fmt::format("rank {} and rank {} are replicas, but their {} differ", rank, other,
                         FirstDifference(engine.layout(), ranks[static_cast<size_t>(rank)],
                                         ranks[static_cast<size_t>(other)]));
    }
  }
  return "";
}

KeptState::KeptState(Engine& engine)
    : scalars_(engine.ReadScalars()), counters_(engine.counters()) {
  ForEachShard(engine, [&](std::string_view slot, FlatId flat) {
    shards_.push_back(engine.ReadShard(slot, flat));
  });
}

void KeptState::Restore(Engine& engine) const {
  auto shard = shards_.begin();
  ForEachShard(
      engine, [&](std::string_view slot, FlatId flat) { engine.WriteShard(slot, flat, *shard++); });
  engine.WriteScalars(scalars_);
  engine.SetCounters(counters_);
}

void StepTwice::KeepFirst(Engine& engine) {
  scalars_ = engine.Collect();
  hashes_ = HashShards(engine);
  before_.Restore(engine);
}

std::string StepTwice::Compare(Engine& engine) const {
  const StepScalars again = engine.ReadScalars();
  const auto same = [](double a, double b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
  };  // NaN is itself
  std::string mine;
  if (!same(scalars_.loss, again.loss))
    mine = fmt::format("loss {:.17g}, then {:.17g}", scalars_.loss, again.loss);
  else if (!same(scalars_.grad_norm, again.grad_norm))
    mine = fmt::format("gradient norm {:.17g}, then {:.17g}", scalars_.grad_norm, again.grad_norm);
  else if (scalars_.applied != again.applied)
    mine = "the update was applied once";
  const std::string state = FirstDifference(engine.layout(), hashes_, HashShards(engine));
  if (!state.empty()) mine += (mine.empty() ? "" : "; other ") + state;
  const std::vector<std::string> all = engine.comms().world().HostAllGather(mine);
  std::vector<int> ranks;
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) ranks.push_back(static_cast<int>(r));
  if (ranks.empty()) return "";
  // Where only some differ, they are the ones to look at; a loss is everyone's.
  return fmt::format(
      "{}, on {}", all[static_cast<size_t>(ranks.front())],
      ranks.size() == all.size() ? "every rank" : fmt::format("rank {}", fmt::join(ranks, ", ")));
}

}  // namespace millrace
