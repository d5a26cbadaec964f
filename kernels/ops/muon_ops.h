// Argument structs of Muon's kernel ops (arXiv 2502.16982; torch.optim.Muon): momentum, and the
// Newton-Schulz iteration that makes a matrix nearly orthogonal: BatchedMatmulOps, and here what
// comes before and after. Conventions as in step_ops.h.
#pragma once

#include "kernels/ops/access.h"
#include "kernels/ops/update_segments.h"
#include "runtime/base/mesh.h"

namespace millrace {

// What a matrix follows, from its gradient: g = grad * clip_scale;
// m' = momentum*m + (1-momentum)*g; out = m', or with nesterov momentum*m' + (1-momentum)*g.
// In f32, one rounding to out's dtype. Unless scalars->applied m stays, bit for bit, and out is
// zeros: nothing that is not finite goes on.   grad any [n], m f32 [n], out any [n].
struct MuonMomentumAttrs {
  double momentum = 0.95;
  bool nesterov = true;
  // Along which the shards of the flat parameter lie; along which ranks have parts of its matrices;
  // and over which of the two `out` is exchanged first: shards that are whole matrices, or parts of
  // such, are not exchanged. No kernel reads them.
  AxisSet shard_axes, split_axes, exchange_axes;
  bool operator==(const MuonMomentumAttrs&) const = default;
};
template <class V>
struct MuonMomentumOp : MuonMomentumAttrs {
  using Attrs = MuonMomentumAttrs;
  static constexpr const char* kName = "muon_momentum";
  V grad, scalars, m, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.grad, Access::kRead, "grad");
    f(s.scalars, Access::kRead, "scalars");
    f(s.m, Access::kAccumulate, "m");
    f(s.out, Access::kWrite, "out");
  }
};

// Matrices, each divided by its own norm: out = x * (1 / max(sqrt(sum of squares of x), eps)), so
// that no singular value is above 1. Squares add up in f64, with one rounding of the factor to f32.
// x any [G,J,N], a matrix of N elements behind the other in each of G groups; out any [G,J,N],
// dense; it may be x.
struct MuonNormaliseAttrs {
  double eps = 1e-7;
  bool operator==(const MuonNormaliseAttrs&) const = default;
};
template <class V>
struct MuonNormaliseOp : MuonNormaliseAttrs {
  using Attrs = MuonNormaliseAttrs;
  static constexpr const char* kName = "muon_normalise";
  V x, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// A shard of matrices follows its update, a no-op bit for bit unless scalars->applied:
// rate = scalars->lr * lr_scale; master = master * (1 - rate*weight_decay) - rate * ortho; with
// `segments` both constants are those of the element's segment.
// master f32 [n], ortho any [n]; compute (optional) bf16 [n] receives the downcast of the new
// master, also when the step is skipped. Gaps, zero in both, stay zero.
struct MuonUpdateAttrs {
  double lr_scale = 1, weight_decay = 0;
  UpdateSegments segments;  // of the whole flat parameter; null: none
  RankInt flat_begin;       // with segments: of this rank's shard in the flat parameter
  AxisSet shard_axes, split_axes, exchange_axes;  // as above, of ortho: exchanged last
  bool operator==(const MuonUpdateAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.flat_begin, "flat_begin");
  }
};
template <class V>
struct MuonUpdateOp : MuonUpdateAttrs {
  using Attrs = MuonUpdateAttrs;
  static constexpr const char* kName = "muon_update";
  V ortho, scalars, master, compute;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.ortho, Access::kRead, "ortho");
    f(s.scalars, Access::kRead, "scalars");
    f(s.master, Access::kAccumulate, "master");
    f(s.compute, Access::kWrite, "compute");
  }
};

}  // namespace millrace
