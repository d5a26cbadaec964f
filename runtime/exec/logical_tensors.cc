#include "runtime/exec/logical_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"

namespace millrace {

std::vector<float> GatherFlat(Engine& engine, std::string_view slot, FlatId flat) {
  const std::vector<float> shard = engine.ReadShard(slot, flat);
  if (engine.layout().mesh.Size(Axis::kShard) == 1) return shard;
  Communicator& comm = engine.comms().Of({Axis::kShard, StreamId::kGather});
  std::vector<float> full;
  full.reserve(static_cast<size_t>(engine.layout().flat(flat).padded_numel));
  for (const std::string& part : comm.HostAllGather(
           {reinterpret_cast<const char*>(shard.data()), shard.size() * sizeof(float)})) {
    MR_CHECK_EQ(part.size(), shard.size() * sizeof(float), "shard of {}",
                engine.layout().flat(flat).name);
    const size_t at = full.size();
    full.resize(at + shard.size());
    std::memcpy(full.data() + at, part.data(), part.size());
  }
  return full;
}

void ForEachLogicalTensor(
    Engine& engine, std::string_view slot,
    const std::function<void(const ParamPlacement&, std::span<const float>)>& f) {
  const ShardLayout& layout = engine.layout();
  // Parameters of one unit may lie in two flats ("norms"): keep the flats of the unit at
  // hand, not the whole model.
  std::map<FlatId, std::vector<float>> at_hand;
  for (const ParamPlacement& param : layout.params) {
    const FlatId flat = param.flat;
    if (!at_hand.contains(flat)) {
      std::erase_if(at_hand, [&](const auto& entry) {
        return static_cast<bool>(layout.flat(entry.first).unit);
      });
      at_hand.emplace(flat, GatherFlat(engine, slot, flat));
    }
    f(param,
      std::span<const float>(at_hand.at(flat))
          .subspan(static_cast<size_t>(param.begin), static_cast<size_t>(param.spec.numel())));
  }
}

void WriteLogicalTensors(Engine& engine, std::string_view slot,
                         const std::function<std::vector<float>(const ParamPlacement&)>& read) {
  const ShardLayout& layout = engine.layout();
  const int shard_rank = layout.mesh.Index(engine.comms().world().rank(), Axis::kShard);
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatParam& flat = layout.flats[f];
    const int64_t shard_begin = shard_rank * flat.shard_numel,
                  shard_end = shard_begin + flat.shard_numel;
    std::vector<float> shard(static_cast<size_t>(flat.shard_numel));
    for (ParamId id : flat.params) {
      const ParamPlacement& param = layout.param(id);
      const int64_t begin = std::max(param.begin, shard_begin),
                    end = std::min(param.begin + param.spec.numel(), shard_end);
      if (begin >= end) continue;
      const std::vector<float> values = read(param);
      MR_CHECK_EQ(static_cast<int64_t>(values.size()), param.spec.numel(), "values of {}",
                  param.spec.name);
      std::copy(values.begin() + (begin - param.begin), values.begin() + (end - param.begin),
                shard.begin() + (begin - shard_begin));
    }
    engine.WriteShard(slot, FlatId{static_cast<int32_t>(f)}, shard);
  }
}

namespace {

std::string HashOf(Engine& engine, const std::vector<std::string_view>& slots) {
  std::map<std::string, std::string> by_name;
  for (const std::string_view slot : slots)
    ForEachLogicalTensor(engine, slot,
                         [&](const ParamPlacement& param, std::span<const float> values) {
                           by_name[param.spec.name] +=
                               Hash128(values.data(), static_cast<int64_t>(values.size_bytes()));
                         });
  Hasher128 all;
  for (const auto& [name, hash] : by_name) all.Update(name + "\n" + hash + "\n");
  return all.Hex();
}

}  // namespace

std::string ParamHash(Engine& engine) { return HashOf(engine, {kMasterSlot.name}); }
std::string OptimizerHash(Engine& engine) {
  std::vector<std::string_view> slots = SavedSlots();
  std::erase(slots, kMasterSlot.name);
  return HashOf(engine, slots);
}

}  // namespace millrace
