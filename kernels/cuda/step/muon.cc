#include "kernels/cuda/step/muon.h"

#include <utility>

#include "kernels/cuda/step/muon_launch.h"
#include "kernels/cuda/step/shard_part.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"
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
  args.groups = op.x.dim(0), args.of_group = op.x.dim(1), args.n = op.x.dim(2);
  args.group_stride = op.x.stride(0);
  const int64_t matrices = args.groups * args.of_group;
  MR_CHECK(op.out.layout.rank == 3 && op.out.dim(0) == args.groups &&
               op.out.dim(1) == args.of_group && op.out.dim(2) == args.n,
           "muon: out is {}, x is {}", ToString(op.out.layout), ToString(op.x.layout));
  MR_CHECK(args.of_group <= 1 || op.x.stride(1) == args.n,
           "muon: x is {}; the matrices of a group lie end to end", ToString(op.x.layout));
  args.x = SequenceOf(op.x, "x").rows;
  args.out = SequenceOf(op.out, "out").rows;
  MR_CHECK(op.out.layout.contiguous(), "muon: out is {}", ToString(op.out.layout));
  args.partials = reinterpret_cast<double*>(
      ScratchOf(op.scratch, MatrixSquaresBytes(matrices, args.n), "muon_normalise"));
  args.eps = op.eps;
  LaunchMuonNormalise(args, LaunchOn(stream));
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
