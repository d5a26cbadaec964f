#include "runtime/plan/schedule/update.h"

#include <algorithm>
#include <memory>

#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

// Of a parameter that no group says more of.
UpdateSegment OwnConstants(const PlanOptions& options, const ParamSpec& param) {
  const AdamWHyper& adamw = options.adamw;
  UpdateSegment own{.beta1 = adamw.beta1, .beta2 = adamw.beta2, .eps = adamw.eps};
  if (param.update == UpdateRule::kMuon) {
    own.lr_scale = options.muon.lr_scale;
    own.weight_decay = options.muon.weight_decay;
  } else if (param.decay) {
    own.weight_decay = adamw.weight_decay;
  }
  return own;
}

UpdateSegment ConstantsOf(const PlanOptions& options, const ParamSpec& param) {
  UpdateSegment constants = OwnConstants(options, param);
  const ParamGroup* const group = GroupOf(options.groups, param.name);
  if (group == nullptr) return constants;
  constants.lr_scale = group->lr_scale.value_or(constants.lr_scale) * group->lr_mult;
  constants.weight_decay = group->weight_decay.value_or(constants.weight_decay);
  constants.beta1 = group->beta1.value_or(constants.beta1);
  constants.beta2 = group->beta2.value_or(constants.beta2);
  constants.eps = group->eps.value_or(constants.eps);
  return constants;
}

// A step waits for a small update's beginning and end more than for what it moves: where gradients
// of weights run beside others, so does it, beside one that takes so many times as long.
constexpr int64_t kTimesAsLarge = 16;

StreamId StreamOfAdamW(const StepBuilder& b, FlatId id) {
  if (!b.options.overlap_weight_gradients) return StreamId::kCompute;
  int64_t largest = 0;
  for (const FlatParam& flat : b.layout.flats)
    if (flat.key.trainable && flat.key.update == UpdateRule::kAdamW)
      largest = std::max(largest, flat.shard_numel);
  return b.layout.flat(id).shard_numel * kTimesAsLarge <= largest ? StreamId::kReduce
                                                                  : StreamId::kCompute;
}

void EmitAdamW(StepBuilder& b, FlatId id, const View& grad) {
  const FlatParam& flat = b.layout.flat(id);
  AdamWOp<View> adamw;
  adamw.master = b.Master(id);
  adamw.m = b.Slot("adam_m", id);
  adamw.v = b.Slot("adam_v", id);
  adamw.grad = grad;
  adamw.compute = b.Compute(id);
  adamw.scalars = b.State("scalars");
  adamw.decay = std::make_shared<const std::vector<Range>>(flat.decay);
  adamw.beta1 = b.options.adamw.beta1;
  adamw.beta2 = b.options.adamw.beta2;
  adamw.eps = b.options.adamw.eps;
  adamw.weight_decay = b.options.adamw.weight_decay;
  adamw.segments = SegmentsOf(b, id);
  adamw.flat_begin = RankInt(0, flat.shard_numel, flat.shard);
  if (adamw.m.layout.dtype != DType::kF32) {
    adamw.runs = std::make_shared<const std::vector<LogicalRun>>(LogicalRunsOf(b.layout, id));
    if (!flat.key.split.empty()) adamw.place = RankInt(0, 1, flat.key.split);
  }
  b.Emit(adamw, StreamOfAdamW(b, id), "adamw/" + flat.name, flat.key.unit);
}

// Every row of the step has its pairs: of all microbatches, on all ranks that share none.
void EmitBalance(StepBuilder& b, FlatId id, const View& load) {
  const FlatParam& flat = b.layout.flat(id);
  auto ranges = std::make_shared<std::vector<Range>>();
  for (const ParamId param : flat.params) {
    const ParamPlacement& placement = b.layout.param(param);
    ranges->push_back({placement.begin, placement.begin + placement.numel()});
  }
  RouterBiasOp<View> op;
  op.bias = b.Master(id);
  op.load = load;
  op.scalars = b.State("scalars");
  op.ranges = std::move(ranges);
  op.rate = flat.key.balance.rate;
  op.pairs = b.options.shape.rows() * b.options.accumulate * b.layout.mesh.data_ranks() *
             flat.key.balance.top_k;
  op.experts = flat.key.balance.experts;
  op.flat_begin = RankInt(0, flat.shard_numel, flat.shard);
  b.Emit(op, StreamId::kCompute, "balance/" + flat.name, flat.key.unit);
}

}  // namespace

UpdateSegments SegmentsOf(const StepBuilder& b, FlatId flat) {
  auto segments = std::make_shared<std::vector<UpdateSegment>>();
  bool grouped = false;
  for (const ParamId id : b.layout.flat(flat).params) {
    const ParamPlacement& param = b.layout.param(id);
    const ParamGroup* const group = GroupOf(b.options.groups, param.spec.name);
    grouped |= group != nullptr && group->SetsConstants();
    UpdateSegment constants = ConstantsOf(b.options, param.spec);
    constants.begin = param.begin;
    if (segments->empty() || !segments->back().SameConstants(constants))
      segments->push_back(constants);
  }
  return grouped ? segments : nullptr;
}

void EmitUpdate(StepBuilder& b, FlatId flat, const View& grad) {
  if (!b.layout.flat(flat).key.trainable) return;
  switch (b.layout.flat(flat).key.update) {
    case UpdateRule::kAdamW:
      return EmitAdamW(b, flat, grad);
    case UpdateRule::kBalance:
      return EmitBalance(b, flat, grad);
    case UpdateRule::kMuon:
      return;  // of all flats together: MuonPass
  }
}

}  // namespace millrace
