#include "tests/support/exact_experts.h"

#include "kernels/cpu/cpu_kernels.h"
#include "tests/support/exact_numbers.h"

namespace millrace::test {
namespace {

int32_t& IdAt(const TensorView& ids, int64_t r, int64_t k) {
  return ids.as<int32_t>()[r * ids.dim(1) + k];
}

void Route(const RouteOp<TensorView>& op, Stream&) {
  const int64_t experts = op.logits.dim(1), top_k = op.ids.dim(1);
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    int64_t h = 0;
    for (int64_t e = 0; e < experts; ++e)
      h += (e + 1) * static_cast<int64_t>(Checked(At(op.logits, {r, e})));
    h = (h % experts + experts) % experts;
    for (int64_t k = 0; k < top_k; ++k) {
      IdAt(op.ids, r, k) = static_cast<int32_t>((h + k) % experts);
      At(op.weights, {r, k}) = (h + k) % 2 == 1 ? 2.0f : 1.0f;
    }
  }
}

void RouteGrad(const RouteGradOp<TensorView>& op, Stream&) {
  ForMatrix(op.d_logits, [&](int64_t r, int64_t e) { At(op.d_logits, {r, e}) = 0; });
  ForMatrix(op.d_weights, [&](int64_t r, int64_t k) {
    At(op.d_logits, {r, IdAt(op.ids, r, k)}) = Small(Checked(At(op.d_weights, {r, k})));
  });
}

int64_t Live(const TensorView& offsets) { return offsets.as<int32_t>()[offsets.numel() - 1]; }

void ExpertActivation(const ExpertActivationOp<TensorView>& op, Stream&) {
  const int64_t width = op.out.dim(1);
  for (int64_t s = 0; s < Live(op.offsets); ++s)
    for (int64_t f = 0; f < width; ++f) {
      const float up = IsGated(op.kind) ? Up(At(op.x, {s, f + width})) : 1;
      At(op.out, {s, f}) = At(op.weights, {s}) * Small(At(op.x, {s, f})) * up;
    }
}

void ExpertActivationGrad(const ExpertActivationGradOp<TensorView>& op, Stream&) {
  const int64_t width = op.d_out.dim(1);
  for (int64_t s = 0; s < Live(op.offsets); ++s) {
    float weight_gradient = 0;
    const float weight = At(op.weights, {s});
    for (int64_t f = 0; f < width; ++f) {
      const float d_out = At(op.d_out, {s, f}), gate = Small(At(op.x, {s, f})),
                  up = IsGated(op.kind) ? Up(At(op.x, {s, f + width})) : 1;
      weight_gradient += gate * up * d_out;
      At(op.d_x, {s, f}) = weight * up * Small(d_out);
      if (IsGated(op.kind)) At(op.d_x, {s, f + width}) = weight * gate * Small(d_out);
    }
    At(op.d_weights, {s}) = Checked(weight_gradient);
  }
}

// The real product; what it gives is small enough to be exact.
void GroupedMatmul(const GroupedMatmulOp<TensorView>& op, Stream& stream) {
  CpuKernels().grouped_matmul(op, stream);
  for (int64_t s = 0; s < Live(op.offsets); ++s)
    for (int64_t n = 0; n < op.out.dim(1); ++n) Checked(At(op.out, {s, n}));
}

}  // namespace

void SetExactExperts(KernelTable& table) {
  table.route = Route;
  table.route_grad = RouteGrad;
  table.expert_activation = ExpertActivation;
  table.expert_activation_grad = ExpertActivationGrad;
  table.grouped_matmul = GroupedMatmul;
}

}  // namespace millrace::test
