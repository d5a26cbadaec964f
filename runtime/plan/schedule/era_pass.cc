// What the prologue of an era's plan does: kernels/ops/cache_ops.h, state_layout.h.
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {
namespace {

void ClearCaches(StepBuilder& b) {
  for (const ProgramBuffer& buffer : b.program.buffers) {
    if (buffer.role != ProgramRole::kCache) continue;
    ClearCacheOp<View> clear;
    clear.x = b.State(buffer.name);
    b.Emit(clear, StreamId::kCompute, "clear/" + buffer.name, {});
  }
}

// As gathers with downcast per_gather: the shard is cast into its own place of the whole, which is
// gathered there. All downcasts have these bits.
void Gather(StepBuilder& b, FlatId id, const View& whole) {
  const FlatParam& flat = b.layout.flat(id);
  const bool gathers = b.Shards(id) > 1, casts = flat.key.encoding != DType::kF32;
  if (casts) {
    CastOp<View> cast;
    cast.x = b.Master(id);
    cast.out = gathers ? ShardSlice(whole, flat) : whole;
    b.Emit(cast, StreamId::kGather, "downcast/" + flat.name, flat.key.unit);
  }
  if (!gathers) return;
  AllGatherOp<View> gather;
  if (!casts) gather.shard = b.Master(id);
  gather.full = whole;
  gather.axes = flat.shard;
  b.Emit(gather, StreamId::kGather, "gather/" + flat.name, flat.key.unit);
}

}  // namespace

void EmitEra(StepBuilder& b) {
  ClearCaches(b);
  for (size_t f = 0; f < b.layout.flats.size(); ++f)
    if (const View whole = b.Gathered(FlatAt(f))) Gather(b, FlatAt(f), whole);
}

}  // namespace millrace
