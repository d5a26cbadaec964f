// What the prologue of an era's plan does: kernels/ops/cache_ops.h, state_layout.h.
#include <algorithm>

#include "runtime/base/arithmetic.h"
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

// Strips in which a flat is gathered of which a rank keeps a part: the flat is nowhere whole.
constexpr int64_t kStrips = 16;
constexpr int64_t kStripAlignment = 128;  // elements

// Of a strip, [shards, n] elements from `first` on of each shard, what the era keeps.
void KeepOfStrip(StepBuilder& b, FlatId id, const KeptPart& part, View strip, int64_t first) {
  const FlatParam& flat = b.layout.flat(id);
  const int64_t begin = b.layout.param(flat.params.back()).begin, shards = b.Shards(id);
  KeepRangeOp<View> keep;
  keep.x = strip;
  keep.x.layout = DenseLayout(flat.key.encoding, {shards, strip.layout.numel() / shards});
  keep.pitch = flat.shard_numel;
  keep.first = first;
  keep.update = first == 0 ? Update::kOverwrite : Update::kAccumulate;
  if (const View ahead = b.Gathered(id); ahead && first < begin) {
    keep.out = ahead;
    b.Emit(keep, StreamId::kGather, "keep/" + flat.name, flat.key.unit);
  }
  keep.out = b.Part(id);
  keep.begin = RankInt(begin, part.numel, part.axes);
  b.Emit(keep, StreamId::kGather, "keep_part/" + flat.name, flat.key.unit);
}

// The bits of Gather, of what is kept.
void GatherPart(StepBuilder& b, FlatId id, const KeptPart& part) {
  const FlatParam& flat = b.layout.flat(id);
  const DType dtype = flat.key.encoding;
  const int64_t shards = b.Shards(id),
                width = std::min(flat.shard_numel,
                                 RoundUp(CeilDiv(flat.shard_numel, kStrips), kStripAlignment));
  const BufferId buffer = b.AddBuffer("strip/" + flat.name, shards * width * Bytes(dtype),
                                      BufferClass::kSlots, BufferScope::kMicrobatch);
  for (int64_t first = 0; first < flat.shard_numel; first += width) {
    const int64_t n = std::min(width, flat.shard_numel - first);
    View own = b.Master(id);
    own.offset += first;
    own.layout = DenseLayout(own.layout.dtype, {n});
    AllGatherOp<View> gather;
    gather.full = WholeView(buffer, dtype, shards * n);
    gather.axes = flat.shard;
    if (dtype == DType::kF32) {
      gather.shard = own;
    } else {
      CastOp<View> cast;
      cast.x = own;
      cast.out = gather.full;
      cast.out.layout = DenseLayout(dtype, {n});
      cast.out.rank_stride = n;
      cast.out.rank_axes = flat.shard;
      b.Emit(cast, StreamId::kGather, "downcast/" + flat.name, flat.key.unit);
    }
    b.Emit(gather, StreamId::kGather, "gather/" + flat.name, flat.key.unit);
    KeepOfStrip(b, id, part, gather.full, first);
  }
}

}  // namespace

void EmitEra(StepBuilder& b) {
  ClearCaches(b);
  for (const FlatId id : b.layout.flat_ids()) {
    if (b.Part(id))
      GatherPart(b, id, KeptPartOf(b.layout, b.program, id));
    else if (const View whole = b.Gathered(id))
      Gather(b, id, whole);
  }
}

}  // namespace millrace
