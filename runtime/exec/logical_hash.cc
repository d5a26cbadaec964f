// Hashes of states, without a whole tensor in any place: ranks hash what they have and hand the
// hasher on, or bring the values together window by window.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/byte_exchange.h"
#include "comm/comm_set.h"
#include "comm/communicator.h"
#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/exec/shard_reader.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

// A parameter's values in one slot, and where they lie.
struct Values {
  struct Part {
    int rank = 0;
    ParamRun run;
  };
  std::string_view slot;
  ParamId param;
  AxisSet holders;
  bool interleaved = false;  // a rank holds several runs, between those of others
  std::vector<Part> parts;   // else: in order, one at most of each rank that holds some
  std::string hasher = Hasher128().Save();  // of the values so far
};

Values Locate(const ShardLayout& layout, std::string_view slot, ParamId param, int rank) {
  Values values;
  values.slot = slot;
  values.param = param;
  values.holders = layout.flat(layout.param(param).flat).holders();
  for (const int holder : layout.mesh.Group(rank, values.holders)) {
    int64_t count = 0;
    ForEachRun(layout, param, holder, [&](const ParamRun& run) {
      if (++count == 1) values.parts.push_back({holder, run});
    });
    values.interleaved = values.interleaved || count > 1;
  }
  std::sort(values.parts.begin(), values.parts.end(),
            [](const auto& a, const auto& b) { return a.run.logical < b.run.logical; });
  return values;
}

// A rank hashes its part and hands the hasher on to the next one's: no value leaves its rank. In
// the n-th turn the n-th part of each parameter is hashed. A collective: groups of holders cut
// their flats alike, so that all ranks count as many turns.
void HashInTurns(Engine& engine, ShardReader& reader, const std::vector<Values*>& all) {
  Communicator& world = engine.comms().world();
  size_t turns = 0;
  for (const Values* values : all) turns = std::max(turns, values->parts.size());
  for (size_t turn = 0; turn < turns; ++turn) {
    const auto is_of = [&](const Values& values, int rank) {
      return turn < values.parts.size() && values.parts[turn].rank == rank;
    };
    std::string mine;  // of each parameter whose turn is this rank's: index, hasher
    for (size_t i = 0; i < all.size(); ++i) {
      if (!is_of(*all[i], world.rank())) continue;
      const ParamRun& run = all[i]->parts[turn].run;
      Hasher128 hasher;
      hasher.Restore(all[i]->hasher);
      reader.Read(all[i]->slot, engine.layout().param(run.param).flat,
                  {run.local, run.local + run.numel}, [&](std::span<const float> values) {
                    hasher.Update(values.data(), static_cast<int64_t>(values.size_bytes()));
                  });
      mine.append(reinterpret_cast<const char*>(&i), sizeof i);
      mine += hasher.Save();
    }
    const std::vector<std::string> gathered = world.HostAllGather(mine);
    for (int rank = 0; rank < world.world_size(); ++rank) {
      const std::string& theirs = gathered[static_cast<size_t>(rank)];
      for (size_t at = 0; at < theirs.size();) {
        size_t i = 0;
        std::memcpy(&i, theirs.data() + at, sizeof i);
        at += sizeof i;
        std::string& hasher = all.at(i)->hasher;  // of replicas, this rank's own
        if (is_of(*all[i], rank)) hasher = theirs.substr(at, hasher.size());
        at += hasher.size();
      }
    }
  }
}

// Elements: few enough for a core's caches, and many for a message of each rank's.
constexpr int64_t kWindowNumel = int64_t{1} << 18;

// The parameters that one rank of a group hashes, as windows of their values in order.
class Windows {
 public:
  explicit Windows(const ShardLayout& layout) : layout_(&layout) {}

  void Add(Values* values) {
    all_.push_back(values);
    total_ += numel(*values);
  }
  const std::vector<Values*>& all() const { return all_; }
  int64_t total() const { return total_; }  // elements

  // The window at hand, until done().
  bool done() const { return at_ == all_.size(); }
  Values& values() const { return *all_[at_]; }
  Range range() const { return {begin_, std::min(begin_ + kWindowNumel, numel(values()))}; }
  bool last() const { return range().end == numel(values()); }  // of these values
  void MoveOn() {
    const bool next = last();
    begin_ = next ? 0 : range().end;
    if (next) ++at_;
  }

  void ForEachRun(int rank, const std::function<void(const ParamRun&)>& f) const {
    if (!done()) ForEachRunWithin(*layout_, values().param, range(), rank, f);
  }
  // What a rank has of the window: in its shard the runs follow each other.
  Range HeldBy(int rank) const {
    Range held;
    ForEachRun(rank, [&](const ParamRun& run) {
      if (held == Range{}) held.begin = run.local;
      held.end = run.local + run.numel;
    });
    return held;
  }

 private:
  int64_t numel(const Values& values) const { return layout_->param(values.param).spec.numel(); }

  const ShardLayout* layout_;
  std::vector<Values*> all_;
  int64_t total_ = 0, begin_ = 0;
  size_t at_ = 0;
};

// Of parameters with the same holders: each rank of a group of these hashes some. In each round it
// sends what it has of the others' windows, and puts its own together from what comes: a value
// travels once. A collective of the world, in which all groups go as many rounds.
void HashInWindows(Engine& engine, ShardReader& reader, AxisSet holders,
                   const std::vector<Values*>& all) {
  const ShardLayout& layout = engine.layout();
  Communicator& world = engine.comms().world();
  const std::vector<int> group = layout.mesh.Group(world.rank(), holders);
  std::vector<Windows> hashed(group.size(), Windows(layout));  // by each rank of the group
  for (Values* values : all)
    std::min_element(hashed.begin(), hashed.end(), [](const Windows& a, const Windows& b) {
      return a.total() < b.total();
    })->Add(values);
  Windows& own = hashed[static_cast<size_t>(layout.mesh.Index(world.rank(), holders))];

  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  std::vector<float> sent, received, window;
  Hasher128 hasher;
  const auto is_done = [](const Windows& windows) { return windows.done(); };
  while (!std::all_of(hashed.begin(), hashed.end(), is_done)) {
    std::vector<SendPiece> sends(static_cast<size_t>(world.world_size()));
    std::vector<RecvPiece> recvs(sends.size());
    sent.clear();
    for (size_t i = 0; i < group.size(); ++i) {
      if (hashed[i].done()) continue;
      const Range held = hashed[i].HeldBy(world.rank());
      reader.Read(hashed[i].values().slot, layout.param(hashed[i].values().param).flat, held,
                  [&](std::span<const float> values) {
                    sent.insert(sent.end(), values.begin(), values.end());
                  });
      sends[static_cast<size_t>(group[i])].bytes = (held.end - held.begin) * kBytes;
    }
    const auto* from = reinterpret_cast<const std::byte*>(sent.data());
    for (SendPiece& piece : sends) {  // ascending, as the group is
      piece.data = from;
      from += piece.bytes;
    }
    if (!own.done()) {
      received.resize(static_cast<size_t>(own.range().end - own.range().begin));
      window.resize(received.size());
    }
    auto* to = reinterpret_cast<std::byte*>(received.data());
    for (const int rank : group) {
      const Range held = own.HeldBy(rank);
      recvs[static_cast<size_t>(rank)] = {to, (held.end - held.begin) * kBytes};
      to += (held.end - held.begin) * kBytes;
    }
    world.HostAllToAll(sends, recvs);

    if (!own.done()) {
      const float* next = received.data();
      for (const int rank : group)
        own.ForEachRun(rank, [&](const ParamRun& run) {
          std::copy_n(next, run.numel, window.data() + (run.logical - own.range().begin));
          next += run.numel;
        });
      hasher.Update(window.data(), std::ssize(window) * kBytes);
      if (own.last()) {
        own.values().hasher = hasher.Save();
        hasher.Reset();
      }
    }
    for (Windows& windows : hashed)
      if (!windows.done()) windows.MoveOn();
  }

  std::string mine;
  for (const Values* values : own.all()) mine += values->hasher;
  const std::vector<std::string> gathered = world.HostAllGather(mine);
  for (size_t i = 0; i < group.size(); ++i) {
    std::string_view theirs = gathered[static_cast<size_t>(group[i])];
    for (Values* values : hashed[i].all()) {
      values->hasher = theirs.substr(0, values->hasher.size());
      theirs.remove_prefix(values->hasher.size());
    }
  }
}

std::string HashOf(Engine& engine, const std::vector<std::string_view>& slots) {
  const ShardLayout& layout = engine.layout();
  std::vector<Values> all;
  for (const std::string_view slot : slots)
    for (const FlatId flat : layout.flat_ids()) {
      if (!layout.flat(flat).Keeps(slot)) continue;
      engine.ShardView(slot, flat);  // refuses released memory: here, on all ranks alike
      for (const ParamId param : layout.flat(flat).params)
        all.push_back(Locate(layout, slot, param, engine.comms().world().rank()));
    }
  std::vector<Values*> in_turns;
  std::map<AxisSet, std::vector<Values*>> in_windows;
  for (Values& values : all)
    (values.interleaved ? in_windows[values.holders] : in_turns).push_back(&values);
  ShardReader reader(engine);
  HashInTurns(engine, reader, in_turns);
  for (const auto& [holders, values] : in_windows) HashInWindows(engine, reader, holders, values);

  std::map<std::string, std::string> by_name;
  for (const Values& values : all) {
    Hasher128 hasher;
    hasher.Restore(values.hasher);
    by_name[layout.param(values.param).spec.name] += hasher.Hex();
  }
  Hasher128 hasher;
  for (const auto& [name, hash] : by_name) hasher.Update(name + "\n" + hash + "\n");
  return hasher.Hex();
}

}  // namespace

std::string ParamHash(Engine& engine) { return HashOf(engine, {kMasterSlot.name}); }
std::string OptimizerHash(Engine& engine) {
  std::vector<std::string_view> slots = SlotNames(engine.layout());
  std::erase(slots, kMasterSlot.name);
  return HashOf(engine, slots);
}

}  // namespace millrace
