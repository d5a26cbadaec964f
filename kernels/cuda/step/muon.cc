#include "kernels/cuda/step/muon.h"

#include <utility>

#include "kernels/cuda/step/muon_launch.h"
#include "kernels/cuda/step/shard_part.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

namespace {

Rows Checked(const TensorView& view, int64_t numel, const char* name) {
  MR_CHECK_EQ(view.numel(), numel, "muon: elements of {}", name);
  return FlatOf(view, name);
}

Rows CheckedF32(const TensorView& view, int64_t numel, const char* name) {
  MR_CHECK(view.dtype() == DType::kF32, "muon: {} is {}; f32 is needed", name, Name(view.dtype()));
  return Checked(view, numel, name);
}

}  // namespace

void CudaMuonMomentum(const MuonMomentumOp<TensorView>& op, Stream& stream) {
  MuonMomentumArgs args;
  args.n = op.m.numel();
  args.grad = Checked(op.grad, args.n, "grad");
  args.m = CheckedF32(op.m, args.n, "m");
  args.out = Checked(op.out, args.n, "out");
  args.scalars = ScalarsOf(op.scalars);
  args.momentum = op.momentum;
  args.nesterov = op.nesterov;
  LaunchMuonMomentum(args, LaunchOn(stream));
}

void CudaMuonNormalise(const MuonNormaliseOp<TensorView>& op, Stream& stream) {
  MuonNormaliseArgs args;
  args.n = op.x.numel();
  args.x = FlatOf(op.x, "x");
  args.sum_squares = DoublesOf(op.sum_squares, 1, "sum_squares");
  args.eps = op.eps;
  LaunchMuonNormalise(args, LaunchOn(stream));
}

void CudaMuonPolynomial(const MuonPolynomialOp<TensorView>& op, Stream& stream) {
  MuonPolynomialArgs args;
  args.rows = op.out.dim(0);
  MR_CHECK_EQ(op.out.dim(1), args.rows, "muon: columns of out");
  args.n = args.rows * args.rows;
  args.gram = Checked(op.gram, args.n, "gram");
  args.square = Checked(op.square, args.n, "square");
  args.out = Checked(op.out, args.n, "out");
  args.a = static_cast<float>(op.coefficients[0]);
  args.b = static_cast<float>(op.coefficients[1]);
  args.c = static_cast<float>(op.coefficients[2]);
  LaunchMuonPolynomial(args, LaunchOn(stream));
}

void CudaMuonUpdate(const MuonUpdateOp<TensorView>& op, Stream& stream) {
  const int64_t n = op.master.numel();
  for (const auto& [view, name] :
       {std::pair{&op.ortho, "ortho"}, {&op.master, "master"}, {&op.compute, "compute"}})
    if (*view) Checked(*view, n, name);
  const auto update = [&](int64_t begin, int64_t end, const UpdateSegment& by) {
    MuonUpdateArgs args;
    args.n = end - begin;
    args.ortho = FlatOf(PartOf(op.ortho, begin, end), "ortho");
    args.master = CheckedF32(PartOf(op.master, begin, end), args.n, "master");
    args.compute = FlatOf(PartOf(op.compute, begin, end), "compute");
    args.scalars = ScalarsOf(op.scalars);
    args.lr_scale = by.lr_scale;
    args.weight_decay = by.weight_decay;
    LaunchMuonUpdate(args, LaunchOn(stream));
  };
  if (op.segments) return ForSegments(*op.segments, op.flat_begin.value(), n, update);
  update(0, n, {.lr_scale = op.lr_scale, .weight_decay = op.weight_decay});
}

}  // namespace millrace
