#include "kernels/cuda/step/muon.h"

#include "kernels/cuda/step/muon_launch.h"
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
  MuonUpdateArgs args;
  args.n = op.master.numel();
  args.ortho = Checked(op.ortho, args.n, "ortho");
  args.master = CheckedF32(op.master, args.n, "master");
  if (op.compute) args.compute = Checked(op.compute, args.n, "compute");
  args.scalars = ScalarsOf(op.scalars);
  args.lr_scale = op.lr_scale;
  args.weight_decay = op.weight_decay;
  LaunchMuonUpdate(args, LaunchOn(stream));
}

}  // namespace millrace
