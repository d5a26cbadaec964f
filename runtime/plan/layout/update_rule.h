// How a parameter follows its gradient, and what that keeps between steps: the rule's state slots.
// A new rule is a row of slots here and the ops that it emits in runtime/plan/schedule/update.cc.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"

namespace millrace {

// kAdamW    by its gradient.
// kBalance  a router's bias, by the loads of its experts (RouterBiasOp): what is summed over
//           microbatches and ranks like a gradient is the count of pairs that have each expert.
//           Counts stay f32 whatever the policy, and have no part in the gradient's norm.
// kMuon     matrices, by the nearest orthogonal matrix to their momentum (kernels/ops/muon_ops.h).
//           That needs them whole: runtime/plan/layout/muon_rounds.h.
enum class UpdateRule { kAdamW, kBalance, kMuon };
std::string_view Name(UpdateRule rule);

// Of kBalance: bias += rate * sign(mean load - load), where each row has `top_k` of `experts`.
struct LoadBalance {
  double rate = 0;
  int64_t experts = 1, top_k = 1;
  bool operator==(const LoadBalance&) const = default;
};

// A tensor of each flat parameter, [shard_numel] on every rank; gaps are zero, for ever.
struct StateSlot {
  // Names its buffers ("adam_m/h.0") and what checkpoints hold: it stays what it is.
  std::string_view name;
  DType dtype = DType::kF32;
  bool operator==(const StateSlot&) const = default;
};

// The weights themselves.
inline constexpr StateSlot kMasterSlot = {"master", DType::kF32};

// All that a run keeps of a flat parameter between steps: the master weights first, then the slots
// of its rule, which begin as zeros. Of a parameter that is not trained the weights alone.
// `moments`: of AdamW's, f32 or bf16. Muon's is f32.
std::vector<StateSlot> StateSlots(UpdateRule rule, bool trainable = true,
                                  DType moments = DType::kF32);

}  // namespace millrace
