#include "kernels/cuda/moe/expert_rows.h"

#include <limits>

#include "kernels/cuda/moe/expert_rows_launch.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"
#include "kernels/ops/router_ops.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

ExpertRowsArgs ArgsOf(const TensorView& x, const TensorView& out, int64_t top_k, const char* op) {
  MR_CHECK_EQ(x.dim(1), out.dim(1), "{}: columns", op);
  ExpertRowsArgs args;
  args.x = RowsOf(x, "x");
  args.out = RowsOf(out, "out");
  args.columns = static_cast<int>(out.dim(1));
  const int64_t row_packs = Packs(out.dim(1)), packs = out.dim(0) * row_packs;
  MR_CHECK_LE(packs, kMostInt, "{}: packs of eight elements", op);
  args.packs = static_cast<uint32_t>(packs);
  args.row_packs = Divisor(row_packs > 0 ? row_packs : 1);
  args.top_k = Divisor(top_k);
  return args;
}

void CheckWeights(const TensorView& weights, const TensorView& out, const char* op) {
  MR_CHECK_EQ(static_cast<bool>(weights), static_cast<bool>(out),
              "{}: are there weights, and places for them", op);
}

}  // namespace

void CudaExpertSlots(const ExpertSlotsOp<TensorView>& op, Stream& stream) {
  const int64_t pairs = op.ids.numel(), experts = op.offsets.numel() - 1;
  MR_CHECK(experts >= 1 && experts <= kMaxExperts && pairs <= kMostInt,
           "expert_slots: {} pairs of {} experts", pairs, experts);
  SlotsArgs args;
  args.ids = IntsOf(op.ids, pairs, "ids");
  args.offsets = IntsOf(op.offsets, experts + 1, "offsets");
  args.slots = IntsOf(op.slots, pairs, "slots");
  args.pair_of = IntsOf(op.pairs, pairs, "pairs");
  args.counts = reinterpret_cast<int32_t*>(
      ScratchOf(op.scratch, ExpertSlotsBytes(pairs, experts), "expert_slots"));
  args.pairs = static_cast<int>(pairs);
  args.experts = static_cast<int>(experts);
  args.tiles = static_cast<int>(CeilDiv(pairs, kSlotTile));
  LaunchExpertSlots(args, LaunchOn(stream));
}

void CudaDispatch(const DispatchOp<TensorView>& op, Stream& stream) {
  ExpertRowsArgs args = ArgsOf(op.x, op.out, op.top_k, "dispatch");
  CheckWeights(op.weights, op.slot_weights, "dispatch");
  args.places = IntsOf(op.pairs, op.out.dim(0), "pairs");
  if (op.offsets)
    args.live = IntsOf(op.offsets, op.offsets.numel(), "offsets") + op.offsets.numel() - 1;
  args.weights = FloatsOf(op.weights, op.x.dim(0) * op.top_k, "weights");
  args.out_weights = FloatsOf(op.slot_weights, op.out.dim(0), "slot_weights");
  LaunchDispatch(args, ElementsOf({args.x, args.out}), LaunchOn(stream));
}

void CudaCombine(const CombineOp<TensorView>& op, Stream& stream) {
  ExpertRowsArgs args = ArgsOf(op.y, op.out, op.slots.dim(1), "combine");
  CheckWeights(op.weights, op.slot_weights, "combine");
  const int64_t pairs = op.out.dim(0) * op.slots.dim(1);
  args.places = IntsOf(op.slots, pairs, "slots");
  args.weights = FloatsOf(op.slot_weights, op.y.dim(0), "slot_weights");
  args.out_weights = FloatsOf(op.weights, pairs, "weights");
  LaunchCombine(args, ElementsOf({args.x, args.out}), LaunchOn(stream));
}

}  // namespace millrace
