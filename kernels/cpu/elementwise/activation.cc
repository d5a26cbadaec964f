#include "kernels/cpu/elementwise/activation.h"

#include "kernels/cpu/magnitude.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

// `wide` has the columns of the activation's input: those of `narrow`, twice for swiglu.
void Check(const TensorView& wide, const TensorView& narrow, ActivationKind kind) {
  CheckFloat(wide, "x");
  CheckFloat(narrow, "out");
  const int64_t times = IsGated(kind) ? 2 : 1;
  MR_CHECK(wide.dim(0) == narrow.dim(0) && wide.dim(1) == times * narrow.dim(1),
           "activation: {} for {}", ToString(wide.layout), ToString(narrow.layout));
}

// NaN stays NaN.
inline float Relu(float x) { return x < 0.0f ? 0.0f : x; }

}  // namespace

void ActivateRow(ActivationKind kind, Row x, int64_t columns, int64_t c, int64_t n, float* y) {
  float gate_buffer[kChunk], up_buffer[kChunk];
  const float* gate = Load(x, c, n, gate_buffer);
  if (kind == ActivationKind::kGelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = Gelu(gate[i]);
  } else if (kind == ActivationKind::kRelu2) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = Relu(gate[i]) * gate[i];
  } else {
    const float* up = Load(x, columns + c, n, up_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = gate[i] * Sigmoid(gate[i]) * up[i];
  }
}

void Activation(const ActivationOp<TensorView>& op, Stream&) {
  Check(op.x, op.out, op.kind);
  const int64_t columns = op.out.dim(1);
  for (int64_t r = 0; r < op.out.dim(0); ++r) {
    const Row x = RowAt(op.x, r), out = RowAt(op.out, r);
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      float* y = Target(out, c, buffer);
      ActivateRow(op.kind, x, columns, c, n, y);
      Store(out, c, n, y);
    });
  }
  RaiseMagnitude(op.magnitude, op.out);
}

void ActivationGrad(const ActivationGradOp<TensorView>& op, Stream&) {
  Check(op.x, op.d_out, op.kind);
  Check(op.d_x, op.d_out, op.kind);
  const int64_t columns = op.d_out.dim(1);
  for (int64_t r = 0; r < op.d_out.dim(0); ++r) {
    const Row x = RowAt(op.x, r), d_out = RowAt(op.d_out, r), d_x = RowAt(op.d_x, r);
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float gate_buffer[kChunk], up_buffer[kChunk], dy_buffer[kChunk];
      const float* gate = Load(x, c, n, gate_buffer);
      const float* dy = Load(d_out, c, n, dy_buffer);
      float* d_gate = Target(d_x, c, gate_buffer);
      if (op.kind == ActivationKind::kGelu) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) d_gate[i] = dy[i] * GeluDerivative(gate[i]);
        Store(d_x, c, n, d_gate);
        return;
      }
      if (op.kind == ActivationKind::kRelu2) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) d_gate[i] = dy[i] * (2.0f * Relu(gate[i]));
        Store(d_x, c, n, d_gate);
        return;
      }
      const float* up = Load(x, columns + c, n, up_buffer);
      float* d_up = Target(d_x, columns + c, up_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float g = gate[i], u = up[i], s = Sigmoid(g), silu = g * s;
        d_gate[i] = dy[i] * u * (s + silu * (1.0f - s));
        d_up[i] = dy[i] * silu;
      }
      Store(d_x, c, n, d_gate);
      Store(d_x, columns + c, n, d_up);
    });
  }
  RaiseMagnitude(op.magnitude, op.d_x);
}

}  // namespace millrace::cpu
