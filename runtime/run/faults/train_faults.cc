#include "runtime/run/faults/train_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <thread>

#include "comm/comm_set.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/exec/engine.h"

namespace millrace {

TrainFaults::TrainFaults(const std::vector<TrainFault>& faults, Engine& engine, int64_t vocab)
    : engine_(engine), rank_(engine.comms().world().rank()), vocab_(vocab) {
  const ShardLayout& layout = engine.layout();
  std::vector<std::string> names;
  for (const FlatParam& flat : layout.flats) names.push_back(flat.name);
  for (const TrainFault& fault : faults) {
    MR_REQUIRE(ErrorCode::kConfig, fault.rank >= 0 && fault.rank < layout.mesh.world(),
               "a fault on rank {}: there are {} ranks", fault.rank, layout.mesh.world());
    Placed placed{fault, -1};
    if (!fault.unit.empty()) {
      const auto it = std::find(names.begin(), names.end(), fault.unit);
      MR_REQUIRE(ErrorCode::kConfig, it != names.end(),
                 "a fault in unit {}: there is no such unit; there are {}", fault.unit,
                 fmt::join(names, ", "));
      placed.flat = it - names.begin();
    }
    faults_.push_back(placed);
  }
}

void TrainFaults::OnTokens(int64_t step, std::span<int32_t> tokens) {
  for (const Placed& placed : faults_) {
    if (placed.fault.step != step || placed.fault.rank != rank_) continue;
    while (placed.fault.kind == TrainFault::Kind::kLoader)
      std::this_thread::sleep_for(std::chrono::hours(1));
    if (placed.fault.kind != TrainFault::Kind::kTokens) continue;
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(PhiloxBlock(static_cast<uint64_t>(step), 0, i)[0] %
                                       static_cast<uint32_t>(vocab_));
  }
}

void TrainFaults::OnIssue(int64_t step) {
  using Kind = TrainFault::Kind;
  for (const Placed& placed : faults_) {
    if (placed.fault.step != step) continue;
    if (placed.fault.kind == Kind::kFlip) FlipBit(placed);
    if (placed.fault.rank != rank_) continue;
    if (placed.fault.kind == Kind::kHold) std::raise(SIGSTOP);
    if (placed.fault.kind == Kind::kNotFinite)
      engine_.OnScalars([flat = placed.flat](StepScalars& scalars) {
        scalars.inject_loss_nan = flat < 0;
        scalars.inject_grad_unit = flat;
      });
    if (placed.fault.kind != Kind::kSkip && placed.fault.kind != Kind::kSwap) continue;
    collectives_.emplace(placed.fault.kind == Kind::kSkip ? CollectiveFault::Kind::kLeaveOut
                                                          : CollectiveFault::Kind::kSwap,
                         engine_.layout().flats[static_cast<size_t>(placed.flat)].key.unit);
    engine_.Observe(&*collectives_);
  }
}

void TrainFaults::OnIssued(int64_t step) {
  if (std::erase_if(faults_, [&](const Placed& placed) { return placed.fault.step == step; }) == 0)
    return;
  engine_.OnScalars({});
  if (collectives_) engine_.Observe(nullptr);
  collectives_.reset();
}

void TrainFaults::FlipBit(const Placed& placed) {
  const FlatId flat{static_cast<int32_t>(placed.flat)};
  std::vector<float> shard = engine_.ReadShard(kMasterSlot.name, flat);
  if (placed.fault.rank == rank_ && !shard.empty()) {
    constexpr uint32_t kBit = 1u << 12;  // of the mantissa: nobody sees it in the loss
    shard.front() = std::bit_cast<float>(std::bit_cast<uint32_t>(shard.front()) ^ kBit);
  }
  engine_.WriteShard(kMasterSlot.name, flat, shard);
}

}  // namespace millrace
