#include "runtime/exec/logical_tensors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "comm/comm_set.h"
#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/shard_reader.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {

namespace {

// The shards of all holders of a flat parameter, f32 [shard_numel] as bytes, on every rank: by
// their place in Mesh::Group(rank, holders). A collective. Bytes stay as they come: at the end of
// a large model's run most time goes into fresh pages.
std::vector<std::string> GatherShards(Engine& engine, std::string_view slot, FlatId id) {
  const ShardLayout& layout = engine.layout();
  const FlatParam& flat = layout.flat(id);
  std::string shard(static_cast<size_t>(flat.shard_numel) * sizeof(float), '\0');
  engine.ReadShard(slot, id,
                   {reinterpret_cast<float*>(shard.data()), static_cast<size_t>(flat.shard_numel)});
  std::vector<std::string> shards;
  if (layout.mesh.Size(flat.holders()) == 1) {
    shards.push_back(std::move(shard));
    return shards;
  }
  // Plans gather over the axes that shard; over others the world does.
  CommSet& comms = engine.comms();
  const bool planned = flat.key.split.empty();
  Communicator& comm = planned ? comms.Of({flat.shard, StreamId::kGather}) : comms.world();
  std::vector<std::string> all = comm.HostAllGather(shard);
  const std::vector<int> holders = layout.mesh.Group(comms.world().rank(), flat.holders());
  for (size_t i = 0; i < holders.size(); ++i) {
    shards.push_back(std::move(all[planned ? i : static_cast<size_t>(holders[i])]));
    MR_CHECK_EQ(shards.back().size(), shard.size(), "shard of {}", flat.name);
  }
  return shards;
}

// Of the flats that are wanted.
void ForEachGathered(Engine& engine, std::string_view slot,
                     const std::function<bool(FlatId)>& wanted,
                     const std::function<void(const ParamPlacement&, std::span<const float>)>& f) {
  const ShardLayout& layout = engine.layout();
  // Parameters of one unit may lie in several flats: keep the flats of the unit at hand, and those
  // that units share, not the whole model.
  std::map<FlatId, std::vector<std::string>> at_hand;
  std::vector<float> values;
  for (const ParamId id : layout.param_ids()) {
    const ParamPlacement& param = layout.param(id);
    const FlatId flat = param.flat;
    if (!layout.flat(flat).Keeps(slot) || !wanted(flat)) continue;
    if (!at_hand.contains(flat)) {
      std::erase_if(at_hand, [&](const auto& entry) {
        const UnitId unit = layout.flat(entry.first).key.unit;
        return unit != param.unit && layout.unit(unit).role != UnitRole::kShared;
      });
      at_hand.emplace(flat, GatherShards(engine, slot, flat));
    }
    const std::vector<int> holders =
        layout.mesh.Group(engine.comms().world().rank(), layout.flat(flat).holders());
    const std::vector<std::string>& shards = at_hand.at(flat);
    const auto numel = static_cast<size_t>(param.spec.numel());
    values.resize(std::max(values.size(), numel));
    for (size_t i = 0; i < holders.size(); ++i)
      ForEachRun(layout, id, holders[i], [&](const ParamRun& run) {
        std::memcpy(values.data() + run.logical,
                    shards[i].data() + static_cast<size_t>(run.local) * sizeof(float),
                    static_cast<size_t>(run.numel) * sizeof(float));
      });
    f(param, std::span(values).first(numel));
  }
}

}  // namespace

void ForEachLogicalTensor(
    Engine& engine, std::string_view slot,
    const std::function<void(const ParamPlacement&, std::span<const float>)>& f) {
  ForEachGathered(
      engine, slot, [](FlatId) { return true; }, f);
}

void WriteLogicalTensors(Engine& engine, std::string_view slot,
                         const std::function<std::vector<float>(const ParamPlacement&)>& read) {
  const ShardLayout& layout = engine.layout();
  const int rank = engine.comms().world().rank();
  for (const FlatId flat_id : layout.flat_ids()) {
    const FlatParam& flat = layout.flat(flat_id);
    if (!flat.Keeps(slot)) continue;
    std::vector<float> shard(static_cast<size_t>(flat.shard_numel));
    for (const ParamId id : flat.params) {
      std::vector<float> values;  // read where some of them are this rank's
      ForEachRun(layout, id, rank, [&](const ParamRun& run) {
        const ParamPlacement& param = layout.param(id);
        if (values.empty()) values = read(param);
        MR_CHECK_EQ(static_cast<int64_t>(values.size()), param.spec.numel(), "values of {}",
                    param.spec.name);
        std::copy_n(values.begin() + run.logical, run.numel, shard.begin() + run.local);
      });
    }
    engine.WriteShard(slot, flat_id, shard);
  }
}

namespace {

// A parameter's values as runs in shards, in order: one at most of each rank that holds some. A
// rank hashes its run and hands the hasher on to the next one's: no value leaves its rank.
struct RunsInOrder {
  struct Part {
    int rank = 0;
    ParamRun run;
  };
  ParamId param;
  std::vector<Part> parts;
  std::string hasher = Hasher128().Save();  // of the parts so far
};

// Of all parameters of a flat. None where the values of a rank lie between those of others (a
// matrix whose rows are split): these are gathered.
std::vector<RunsInOrder> RunsOf(const ShardLayout& layout, FlatId id, int rank) {
  const FlatParam& flat = layout.flat(id);
  std::vector<RunsInOrder> runs;
  for (const ParamId param : flat.params) {
    RunsInOrder& own = runs.emplace_back();
    own.param = param;
    for (const int holder : layout.mesh.Group(rank, flat.holders())) {
      int64_t count = 0;
      ForEachRun(layout, param, holder, [&](const ParamRun& run) {
        if (++count == 1) own.parts.push_back({holder, run});
      });
      if (count > 1) return {};
    }
    std::sort(own.parts.begin(), own.parts.end(),
              [](const auto& a, const auto& b) { return a.run.logical < b.run.logical; });
  }
  return runs;
}

// In the n-th turn the n-th part of each parameter is hashed. A collective: groups of holders cut
// their flats alike, so that all ranks count as many turns.
void HashInTurns(Engine& engine, std::string_view slot, std::vector<RunsInOrder>& params) {
  const ShardLayout& layout = engine.layout();
  Communicator& world = engine.comms().world();
  ShardReader reader(engine);
  size_t turns = 0;
  for (const RunsInOrder& param : params) turns = std::max(turns, param.parts.size());
  for (size_t turn = 0; turn < turns; ++turn) {
    const auto is_of = [&](const RunsInOrder& param, int rank) {
      return turn < param.parts.size() && param.parts[turn].rank == rank;
    };
    std::string mine;  // of each parameter whose turn is this rank's: index, hasher
    for (size_t i = 0; i < params.size(); ++i) {
      if (!is_of(params[i], world.rank())) continue;
      const ParamRun& run = params[i].parts[turn].run;
      Hasher128 hasher;
      hasher.Restore(params[i].hasher);
      reader.Read(slot, layout.param(run.param).flat, {run.local, run.local + run.numel},
                  [&](std::span<const float> values) {
                    hasher.Update(values.data(), static_cast<int64_t>(values.size_bytes()));
                  });
      mine.append(reinterpret_cast<const char*>(&i), sizeof i);
      mine += hasher.Save();
    }
    const std::vector<std::string> all = world.HostAllGather(mine);
    for (int rank = 0; rank < world.world_size(); ++rank) {
      const std::string& theirs = all[static_cast<size_t>(rank)];
      for (size_t at = 0; at < theirs.size();) {
        size_t i = 0;
        std::memcpy(&i, theirs.data() + at, sizeof i);
        at += sizeof i;
        std::string& hasher = params.at(i).hasher;  // of replicas, this rank's own
        if (is_of(params[i], rank)) hasher = theirs.substr(at, hasher.size());
        at += hasher.size();
      }
    }
  }
}

std::string HashOf(Engine& engine, const std::vector<std::string_view>& slots) {
  const ShardLayout& layout = engine.layout();
  std::map<std::string, std::string> by_name;
  for (const std::string_view slot : slots) {
    std::vector<RunsInOrder> params;
    std::set<FlatId> gathered;
    for (const FlatId flat : layout.flat_ids()) {
      if (!layout.flat(flat).Keeps(slot)) continue;
      engine.ShardView(slot, flat);  // refuses released memory: here, on all ranks alike
      std::vector<RunsInOrder> runs = RunsOf(layout, flat, engine.comms().world().rank());
      if (runs.empty()) gathered.insert(flat);
      std::move(runs.begin(), runs.end(), std::back_inserter(params));
    }
    HashInTurns(engine, slot, params);
    for (const RunsInOrder& param : params) {
      Hasher128 hasher;
      hasher.Restore(param.hasher);
      by_name[layout.param(param.param).spec.name] += hasher.Hex();
    }
    ForEachGathered(
        engine, slot, [&](FlatId flat) { return gathered.contains(flat); },
        [&](const ParamPlacement& param, std::span<const float> values) {
          by_name[param.spec.name] +=
              Hash128(values.data(), static_cast<int64_t>(values.size_bytes()));
        });
  }
  Hasher128 all;
  for (const auto& [name, hash] : by_name) all.Update(name + "\n" + hash + "\n");
  return all.Hex();
}

}  // namespace

std::string ParamHash(Engine& engine) { return HashOf(engine, {kMasterSlot.name}); }
std::string OptimizerHash(Engine& engine) {
  std::vector<std::string_view> slots = SlotNames(engine.layout());
  std::erase(slots, kMasterSlot.name);
  return HashOf(engine, slots);
}

}  // namespace millrace
