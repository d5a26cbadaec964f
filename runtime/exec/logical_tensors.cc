#include "runtime/exec/logical_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "comm/comm_set.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
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

}  // namespace

void ForEachLogicalTensor(
    Engine& engine, std::string_view slot,
    const std::function<void(const ParamPlacement&, std::span<const float>)>& f) {
  const ShardLayout& layout = engine.layout();
  // Parameters of one unit may lie in several flats: keep the flats of the unit at hand, and those
  // that units share, not the whole model.
  std::map<FlatId, std::vector<std::string>> at_hand;
  std::vector<float> values;
  for (const ParamId id : layout.param_ids()) {
    const ParamPlacement& param = layout.param(id);
    const FlatId flat = param.flat;
    if (!layout.flat(flat).Keeps(slot)) continue;
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

}  // namespace millrace
