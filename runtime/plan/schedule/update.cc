#include "runtime/plan/schedule/update.h"

#include <memory>

namespace millrace {
namespace {

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
  adamw.flat_begin = RankInt(0, flat.shard_numel, flat.shard);
  b.Emit(adamw, StreamId::kCompute, "adamw/" + flat.name, flat.key.unit);
}

}  // namespace

void EmitUpdate(StepBuilder& b, FlatId flat, const View& grad) {
  switch (b.layout.flat(flat).key.update) {
    case UpdateRule::kAdamW:
      return EmitAdamW(b, flat, grad);
  }
}

}  // namespace millrace
