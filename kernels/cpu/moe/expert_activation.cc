#include "kernels/cpu/moe/expert_activation.h"

#include "kernels/cpu/moe/expert_rows.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

// `wide` has the columns of the activation's input: those of `narrow`, twice if it is gated.
void Check(const TensorView& wide, const TensorView& narrow, const TensorView& weights,
           ActivationKind kind) {
  CheckFloat(wide, "x");
  CheckFloat(narrow, "out");
  MR_CHECK(wide.dim(0) == narrow.dim(0) && wide.dim(1) == (IsGated(kind) ? 2 : 1) * narrow.dim(1) &&
               weights.dtype() == DType::kF32 && weights.numel() == narrow.dim(0) &&
               weights.layout.contiguous(),
           "expert_activation: {} for {}, weights {}", ToString(wide.layout),
           ToString(narrow.layout), ToString(weights.layout));
}

// act(x), gated by `up` if it is gated; and its derivatives by x and by `up`.
template <ActivationKind kind>
float Act(float x, float up) {
  if constexpr (kind == ActivationKind::kGelu) return Gelu(x);
  if constexpr (kind == ActivationKind::kSwiglu) return x * Sigmoid(x) * up;
  if constexpr (kind == ActivationKind::kRelu2) return x < 0 ? 0.0f : x * x;
}

struct Slopes {
  float x, up;
};
template <ActivationKind kind>
Slopes ActSlopes(float x, float up) {
  if constexpr (kind == ActivationKind::kGelu) return {GeluDerivative(x), 0};
  if constexpr (kind == ActivationKind::kRelu2) return {x < 0 ? 0.0f : 2.0f * x, 0};
  const float s = Sigmoid(x), silu = x * s;
  return {up * (s + silu * (1.0f - s)), silu};
}

// f.operator()<kind>().
template <class F>
void ForKind(ActivationKind kind, F&& f) {
  switch (kind) {
    case ActivationKind::kGelu:
      return f.template operator()<ActivationKind::kGelu>();
    case ActivationKind::kSwiglu:
      return f.template operator()<ActivationKind::kSwiglu>();
    case ActivationKind::kRelu2:
      return f.template operator()<ActivationKind::kRelu2>();
  }
}

template <ActivationKind kind>
void ForwardRow(const Row& x, const Row& out, int64_t columns, float weight) {
  ForChunks(columns, [&](int64_t c, int64_t n) {
    float x_buffer[kChunk], up_buffer[kChunk];
    const float* gate = Load(x, c, n, x_buffer);
    const float* up = IsGated(kind) ? Load(x, columns + c, n, up_buffer) : gate;
    float* y = Target(out, c, x_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = weight * Act<kind>(gate[i], up[i]);
    Store(out, c, n, y);
  });
}

// Returns d_weight.
template <ActivationKind kind>
double GradRow(const Row& x, const Row& d_out, const Row& d_x, int64_t columns, float weight) {
  double d_weight = 0;
  ForChunks(columns, [&](int64_t c, int64_t n) {
    float x_buffer[kChunk], up_buffer[kChunk], dy_buffer[kChunk], y[kChunk];
    const float* gate = Load(x, c, n, x_buffer);
    const float* up = IsGated(kind) ? Load(x, columns + c, n, up_buffer) : gate;
    const float* dy = Load(d_out, c, n, dy_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = Act<kind>(gate[i], up[i]);
    d_weight += DotInDouble(y, dy, n);
    float* d_gate = Target(d_x, c, x_buffer);
    float* d_up = IsGated(kind) ? Target(d_x, columns + c, up_buffer) : y;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const Slopes slopes = ActSlopes<kind>(gate[i], up[i]);
      d_gate[i] = slopes.x * (weight * dy[i]);
      d_up[i] = slopes.up * (weight * dy[i]);
    }
    Store(d_x, c, n, d_gate);
    if (IsGated(kind)) Store(d_x, columns + c, n, d_up);
  });
  return d_weight;
}

}  // namespace

void ExpertActivation(const ExpertActivationOp<TensorView>& op, Stream&) {
  Check(op.x, op.out, op.weights, op.kind);
  const int64_t live = LiveSlots(op.offsets, op.out.dim(0), "expert_activation");
  ForKind(op.kind, [&]<ActivationKind kind>() {
    for (int64_t s = 0; s < live; ++s)
      ForwardRow<kind>(RowAt(op.x, s), RowAt(op.out, s), op.out.dim(1), op.weights.as<float>()[s]);
  });
}

void ExpertActivationGrad(const ExpertActivationGradOp<TensorView>& op, Stream&) {
  Check(op.x, op.d_out, op.weights, op.kind);
  Check(op.d_x, op.d_out, op.d_weights, op.kind);
  const int64_t live = LiveSlots(op.offsets, op.d_out.dim(0), "expert_activation_grad");
  ForKind(op.kind, [&]<ActivationKind kind>() {
    for (int64_t s = 0; s < live; ++s)
      op.d_weights.as<float>()[s] =
          static_cast<float>(GradRow<kind>(RowAt(op.x, s), RowAt(op.d_out, s), RowAt(op.d_x, s),
                                           op.d_out.dim(1), op.weights.as<float>()[s]));
  });
}

}  // namespace millrace::cpu
