// What doctor --measure calls kernels with.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops/cost.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "tools/cli/bench/measure_machine.h"

namespace millrace {
namespace {

template <template <class> class Op>
Op<Shape> ShapesOf(const Op<TensorView>& op) {
  return ConvertOp<Op, TensorView, Shape>(op, [](const TensorView& view) {
    return Shape{view.layout, view.data != nullptr};
  });
}

template <template <class> class Op>
void TakeScratch(Op<TensorView>& op, Backend backend, Cut& cut) {
  const int64_t bytes = WorkspaceBytes(ShapesOf(op), backend);
  if (bytes > 0) op.scratch = cut.Take(DType::kU8, {bytes});
}

}  // namespace

std::string Samples::Text(double unit) const {
  return fmt::format("{:.4g} ({:.4g} to {:.4g})", median() / unit, Quantile(values, 0) / unit,
                     Quantile(values, 1) / unit);
}

TensorView Cut::Take(DType dtype, std::initializer_list<int64_t> dims) {
  TensorView view{next_, DenseLayout(dtype, dims)};
  const int64_t bytes = RoundUp(view.layout.numel() * Bytes(dtype), 256);
  MR_REQUIRE(ErrorCode::kDoesNotFit, bytes <= left_,
             "doctor --measure: {} bytes are needed, the arena has {} left", bytes, left_);
  next_ += bytes;
  left_ -= bytes;
  return view;
}

Products::Products(std::span<const ProductShape> shapes, DType dtype, Backend backend, Cut& cut) {
  int64_t a = 0, b = 0, out = 0, scratch = 0;
  for (const ProductShape& p : shapes) {
    MatmulOp<TensorView> op;
    op.a = {nullptr, DenseLayout(dtype, {p.m, p.k})};
    op.b = {nullptr, DenseLayout(dtype, {p.k, p.n})};
    op.out = {nullptr, DenseLayout(dtype, {p.m, p.n})};
    a = std::max(a, p.m * p.k);
    b = std::max(b, p.k * p.n);
    out = std::max(out, p.m * p.n);
    ops_.push_back(op);
  }
  const TensorView all_a = cut.Take(dtype, {a}), all_b = cut.Take(dtype, {b}),
                   all_out = cut.Take(dtype, {out});
  for (MatmulOp<TensorView>& op : ops_) {
    op.a.data = all_a.data;
    op.b.data = all_b.data;
    op.out.data = all_out.data;
    flops_ += Flops(ShapesOf(op));
    scratch = std::max(scratch, WorkspaceBytes(ShapesOf(op), backend));
  }
  if (scratch == 0) return;
  const TensorView all_scratch = cut.Take(DType::kU8, {scratch});
  for (MatmulOp<TensorView>& op : ops_) op.scratch = all_scratch;
}

void Products::Run(const KernelTable& kernels, Stream& stream) const {
  for (const MatmulOp<TensorView>& op : ops_) kernels.matmul(op, stream);
}

AttentionCalls::AttentionCalls(const Attend& of, DType dtype, Backend backend, Cut& cut) {
  const auto wide = [&](int64_t heads) {
    return cut.Take(dtype, {of.batch, of.length, heads, of.head_dim});
  };
  forward.scale = backward.scale = 1 / std::sqrt(static_cast<float>(of.head_dim));
  backward.deterministic = false;
  backward.q = forward.q = wide(of.heads);
  backward.k = forward.k = wide(of.kv_heads);
  backward.v = forward.v = wide(of.kv_heads);
  backward.out = forward.out = wide(of.heads);
  backward.lse = forward.lse = cut.Take(DType::kF32, {of.batch, of.heads, of.length});
  backward.d_out = wide(of.heads);
  backward.d_q = wide(of.heads);
  backward.d_k = wide(of.kv_heads);
  backward.d_v = wide(of.kv_heads);
  TakeScratch(forward, backend, cut);
  TakeScratch(backward, backend, cut);
  forward_flops_ = Flops(ShapesOf(forward));
}

double Slowest(Session& session, double seconds) {
  double slowest = seconds;
  for (const std::string& of_rank :
       session.engine().comms().world().HostAllGather(fmt::format("{}", seconds)))
    slowest = std::max(slowest, std::stod(of_rank));
  return slowest;
}

}  // namespace millrace
