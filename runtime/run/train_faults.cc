#include "runtime/run/train_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace millrace {

TrainFaults::TrainFaults(const std::vector<TrainFault>& faults, Engine& engine)
    : rank_(engine.comms().world().rank()) {
  const ShardLayout& layout = engine.layout();
  std::vector<std::string> names;
  for (const FlatParam& flat : layout.flats) names.push_back(flat.name);
  for (const TrainFault& fault : faults) {
    MR_REQUIRE(ErrorCode::kConfig, fault.rank >= 0 && fault.rank < layout.mesh.world(),
               "a fault on rank {}: there are {} ranks", fault.rank, layout.mesh.world());
    Placed placed{fault, -1, {}};
    if (!fault.unit.empty()) {
      const auto it = std::find(names.begin(), names.end(), fault.unit);
      MR_REQUIRE(ErrorCode::kConfig, it != names.end(),
                 "a fault in unit {}: there is no such unit; there are {}", fault.unit,
                 fmt::join(names, ", "));
      placed.flat = it - names.begin();
    }
    using Kind = TrainFault::Kind;
    const int64_t unit =
        placed.flat < 0 ? -1 : layout.flats[static_cast<size_t>(placed.flat)].key.unit.value;
    if (fault.kind == Kind::kNotFinite && placed.flat < 0) placed.injection.loss_nan = true;
    if (fault.kind == Kind::kNotFinite) placed.injection.grad_unit = placed.flat;
    if (fault.kind == Kind::kSkip) placed.injection.skip_unit = unit;
    if (fault.kind == Kind::kSwap) placed.injection.swap_unit = unit;
    faults_.push_back(placed);
  }
}

Injection TrainFaults::At(int64_t step) const {
  for (const Placed& placed : faults_)
    if (placed.fault.step == step && placed.fault.rank == rank_ &&
        placed.fault.kind != TrainFault::Kind::kFlip &&
        placed.fault.kind != TrainFault::Kind::kTokens)
      return placed.injection;
  return {};
}

void TrainFaults::SpoilTokens(int64_t step, std::span<int32_t> tokens, int64_t vocab) const {
  for (const Placed& placed : faults_) {
    if (placed.fault.step != step || placed.fault.rank != rank_) continue;
    while (placed.fault.kind == TrainFault::Kind::kLoader)
      std::this_thread::sleep_for(std::chrono::hours(1));
    if (placed.fault.kind != TrainFault::Kind::kTokens) continue;
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(PhiloxBlock(static_cast<uint64_t>(step), 0, i)[0] %
                                       static_cast<uint32_t>(vocab));
  }
}

void TrainFaults::FlipBits(int64_t step, Engine& engine) const {
  for (const Placed& placed : faults_) {
    if (placed.fault.kind != TrainFault::Kind::kFlip || placed.fault.step != step) continue;
    const FlatId flat{static_cast<int32_t>(placed.flat)};
    std::vector<float> shard = engine.ReadShard(kMasterSlot.name, flat);
    if (placed.fault.rank == rank_ && !shard.empty()) {
      constexpr uint32_t kBit = 1u << 12;  // of the mantissa: nobody sees it in the loss
      shard.front() = std::bit_cast<float>(std::bit_cast<uint32_t>(shard.front()) ^ kBit);
    }
    engine.WriteShard(kMasterSlot.name, flat, shard);
  }
}

void TrainFaults::Done(int64_t step) {
  std::erase_if(faults_, [&](const Placed& placed) { return placed.fault.step == step; });
}

}  // namespace millrace
