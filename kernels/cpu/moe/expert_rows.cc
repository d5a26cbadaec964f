#include "kernels/cpu/moe/expert_rows.h"

#include <algorithm>

#include "kernels/cpu/rows.h"

namespace millrace::cpu {
namespace {

void CheckWeights(const TensorView& weights, int64_t pairs, const TensorView& slot_weights,
                  int64_t slots, const char* op) {
  MR_CHECK_EQ(static_cast<bool>(weights), static_cast<bool>(slot_weights),
              "{}: are there weights, and slot_weights", op);
  if (!weights) return;
  MR_CHECK(weights.dtype() == DType::kF32 && weights.numel() == pairs &&
               weights.layout.contiguous() && slot_weights.dtype() == DType::kF32 &&
               slot_weights.numel() == slots && slot_weights.layout.contiguous(),
           "{}: weights are {}, slot_weights {} of {} slots", op, ToString(weights.layout),
           ToString(slot_weights.layout), slots);
}

}  // namespace

void CheckInts(const TensorView& view, int64_t numel, const char* name) {
  MR_CHECK(view.dtype() == DType::kI32 && view.numel() == numel && view.layout.contiguous(),
           "{} is {}; dense i32 of {} elements is needed", name, ToString(view.layout), numel);
}

int64_t LiveSlots(const TensorView& offsets, int64_t slots, const char* op) {
  CheckInts(offsets, offsets.numel(), "offsets");
  const int64_t live = offsets.as<int32_t>()[offsets.numel() - 1];
  MR_CHECK(live >= 0 && live <= slots, "{}: {} live slots of {}", op, live, slots);
  return live;
}

void ExpertSlots(const ExpertSlotsOp<TensorView>& op, Stream&) {
  const int64_t pairs = op.ids.numel(), experts = op.offsets.numel() - 1;
  CheckInts(op.ids, pairs, "ids");
  CheckInts(op.slots, pairs, "slots");
  CheckInts(op.pairs, pairs, "pairs");
  const int32_t* ids = op.ids.as<int32_t>();
  int32_t* offsets = op.offsets.as<int32_t>();
  std::fill_n(offsets, experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) {
    MR_CHECK(ids[i] >= 0 && ids[i] < experts, "expert_slots: expert {} of {}", ids[i], experts);
    ++offsets[ids[i] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  // offsets[e] moves on to the end of expert e, which is where the next begins, and back again.
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t slot = offsets[ids[i]]++;
    op.slots.as<int32_t>()[i] = slot;
    op.pairs.as<int32_t>()[slot] = static_cast<int32_t>(i);
  }
  std::copy_backward(offsets, offsets + experts, offsets + experts + 1);
  offsets[0] = 0;
}

void Dispatch(const DispatchOp<TensorView>& op, Stream&) {
  const int64_t slots = op.out.dim(0), columns = op.out.dim(1), rows = op.x.dim(0);
  CheckFloat(op.x, "x");
  CheckFloat(op.out, "out");
  CheckInts(op.pairs, slots, "pairs");
  CheckWeights(op.weights, rows * op.top_k, op.slot_weights, slots, "dispatch");
  MR_CHECK_EQ(op.x.dim(1), columns, "dispatch: columns of x and out");
  const int64_t live = op.offsets ? LiveSlots(op.offsets, slots, "dispatch") : slots;
  for (int64_t s = 0; s < live; ++s) {
    const int32_t pair = op.pairs.as<int32_t>()[s];
    if (pair == -1 && !op.offsets) {
      const Row none = RowAt(op.out, s);
      ForChunks(columns, [&](int64_t c, int64_t n) {
        const float zeros[kChunk] = {};
        Store(none, c, n, zeros);
      });
      if (op.weights) op.slot_weights.as<float>()[s] = 0;
      continue;
    }
    MR_CHECK(pair >= 0 && pair < rows * op.top_k, "dispatch: pair {} of {}", pair, rows * op.top_k);
    const Row x = RowAt(op.x, pair / op.top_k), out = RowAt(op.out, s);
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      Store(out, c, n, Load(x, c, n, buffer));
    });
    if (op.weights) op.slot_weights.as<float>()[s] = op.weights.as<float>()[pair];
  }
}

void Combine(const CombineOp<TensorView>& op, Stream&) {
  const int64_t rows = op.out.dim(0), columns = op.out.dim(1), slots = op.y.dim(0),
                top_k = op.slots.dim(1);
  CheckFloat(op.y, "y");
  CheckFloat(op.out, "out");
  CheckInts(op.slots, rows * top_k, "slots");
  CheckWeights(op.weights, rows * top_k, op.slot_weights, slots, "combine");
  MR_CHECK_EQ(op.y.dim(1), columns, "combine: columns of y and out");
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t* at = op.slots.as<int32_t>() + r * top_k;
    for (int64_t k = 0; k < top_k; ++k) {
      MR_CHECK(at[k] >= 0 && at[k] < slots, "combine: slot {} of {}", at[k], slots);
      if (op.weights) op.weights.as<float>()[r * top_k + k] = op.slot_weights.as<float>()[at[k]];
    }
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float sum[kChunk], buffer[kChunk];
      std::fill_n(sum, n, 0.0f);
      for (int64_t k = 0; k < top_k; ++k) {
        const float* y = Load(RowAt(op.y, at[k]), c, n, buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sum[i] += y[i];
      }
      Store(RowAt(op.out, r), c, n, sum);
    });
  }
}

}  // namespace millrace::cpu
