// Argument structs of the kernel ops that surround the model: sharding, gradients, statistics,
// update. Conventions as in model_ops.h.
//
// Flat views are 1-D and contiguous. n is the numel of the view.
// u indexes flat parameters, U is their number.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops/access.h"
#include "kernels/ops/update_segments.h"
#include "runtime/base/mesh.h"
#include "runtime/base/policies.h"

namespace millrace {

// out[i] = x[i] converted to out's dtype (round to nearest even).   x, out any [n].
// The downcast before a gather, the wire copy in 16 bits.
template <class V>
struct CastOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "cast";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
  }
};

// out[i] (=|+=) x[i]: one parameter's gradient into its slice of the flat gradient.
// Any dtype [n]; f32 sum, one rounding.
struct ConcatAttrs {
  Update update = Update::kOverwrite;
  bool operator==(const ConcatAttrs&) const = default;
};
template <class V>
struct ConcatOp : ConcatAttrs {
  using Attrs = ConcatAttrs;
  static constexpr const char* kName = "concat";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Updated{s.update}, "out");
  }
};

// out[i] (=|+=) x[i]: a reduced shard into the gradient shard.   x any [n], out f32 [n].
struct AccumulateAttrs {
  Update update = Update::kAccumulate;
  bool operator==(const AccumulateAttrs&) const = default;
};
template <class V>
struct AccumulateOp : AccumulateAttrs {
  using Attrs = AccumulateAttrs;
  static constexpr const char* kName = "accumulate";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Updated{s.update}, "out");
  }
};

// Half-open element ranges of a flat parameter, ascending and disjoint.
struct Range {
  int64_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};
using RangeList = std::shared_ptr<const std::vector<Range>>;

// flat[i] = 0 for i in ranges: the gaps between parameters and the tail of a flat gradient.
// Any dtype [n].
struct ZeroRangesAttrs {
  RangeList ranges;
  bool operator==(const ZeroRangesAttrs&) const = default;
};
template <class V>
struct ZeroRangesOp : ZeroRangesAttrs {
  using Attrs = ZeroRangesAttrs;
  static constexpr const char* kName = "zero_ranges";
  V flat;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.flat, Access::kAccumulate, "flat");
  }
};

// bad_count[0] (=|+=) number of non-finite x[i]: this rank's own contribution, before reduction.
// x any [n], bad_count f64 [1]. squares f64 [1] or absent: SumSquaresOp of the same x, for which
// CUDA reads it once; a sum that is finite says that no element is bad, since squares of floats do
// not overflow a double.
// When scalars->inject_grad_unit == unit, x[inject_index] is set to NaN first (fault injection),
// hence the access.
struct FiniteScanAttrs {
  int64_t unit = 0;
  int64_t inject_index = 0;
  Update update = Update::kOverwrite;
  bool operator==(const FiniteScanAttrs&) const = default;
};
template <class V>
struct FiniteScanOp : FiniteScanAttrs {
  using Attrs = FiniteScanAttrs;
  static constexpr const char* kName = "finite_scan";
  V x, bad_count, squares, scalars, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.scalars, Access::kRead, "scalars");
    f(s.x, Access::kAccumulate, "x");
    f(s.bad_count, Updated{s.update}, "bad_count");
    f(s.squares, Access::kWrite, "squares");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// out[0] = sum of x[i]^2, in double, fixed order.   x any [n], out f64 [1].
template <class V>
struct SumSquaresOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "sum_squares";
  V x, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// lr(step): linear warm-up lr*(step+1)/warmup while step < warmup; then, with s = step - warmup
// counted against decay_steps:
// constant: lr;
// cosine:   min_lr + (lr-min_lr)*(1+cos(pi*min(1, s/decay)))/2;
// wsd:      lr until total - decay_steps, then linear to min_lr at total (warm-up, stable, decay;
//           arXiv 2404.06395).
// A decay of 0 steps is over as soon as it begins.
struct LearningRate {
  ScheduleKind kind = ScheduleKind::kConstant;
  double lr = 0, min_lr = 0;
  int64_t warmup = 0;
  // Cosine: steps from the end of warm-up to min_lr; wsd: length of the final decay.
  int64_t decay_steps = 0;
  int64_t total_steps = 0;
  bool operator==(const LearningRate&) const = default;
};

// The value above for one step. Shared by backends and the config check; the tests' oracle is
// written apart.
double LearningRateAt(const LearningRate& schedule, int64_t step);

// Dynamic scaling of the loss's gradient, as f16 needs it: what PyTorch's GradScaler does, with its
// names and defaults. All three factors are powers of two, so that scaling is exact.
struct LossScaling {
  double init_scale = 0;  // 0: gradients are not scaled
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool operator==(const LossScaling&) const = default;
};
// Gradients that are not finite at the least scale, or would be below it, are no matter of scaling.
// Beyond the most, the scale stays.
inline constexpr double kLeastLossScale = 1, kMostLossScale = 0x1p64;

// First op of a step: scalars->lr = LearningRateAt(schedule, scalars->step), and loss_scale is what
// the step before has left, or scaling.init_scale; 1 without scaling.
struct BeginStepAttrs {
  LearningRate schedule;
  LossScaling scaling = {};
  bool operator==(const BeginStepAttrs&) const = default;
};
template <class V>
struct BeginStepOp : BeginStepAttrs {
  using Attrs = BeginStepAttrs;
  static constexpr const char* kName = "begin_step";
  V scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.scalars, Access::kAccumulate, "scalars");
  }
};

// Columns of one rank's row of a step's statistics, f64 [width]. Members, not functions, so that
// device code may read them.
struct StatsRow {
  constexpr StatsRow(int64_t units, int64_t loss_count)
      : sum_squares(0), bad_counts(units), losses(2 * units), width(2 * units + loss_count) {}
  int64_t sum_squares;  // the first of U columns: of this rank's shard of each flat parameter
  int64_t bad_counts;   // the first of U columns: non-finite values in each flat gradient
  int64_t losses;       // the first of L columns: of each loss, its sum over this rank's targets
  int64_t width;
};

// The terms of a step's loss, in the order of their columns.
inline constexpr int64_t kMaxLosses = 8;
struct LossWeights {
  int64_t count = 1;
  double weight[kMaxLosses] = {1};
  bool operator==(const LossWeights&) const = default;
};

// Global statistics from every rank's row, the same bits on all ranks: sums run over ranks in
// order.
//
// rows f64 [world, W], W = StatsRow(U, L).width: row r is rank r's.
// loss = sum over l of (losses.weight[l] * sum over r of column l) * inv_valid_tokens;
// grad_norm = sqrt(sum over the ranks of replica 0 and over u of sum_squares) / loss_scale.
// Ranks are numbered replica-major: rank = replica * shard_world + shard_rank, so replica 0 is
// ranks [0, shard_world).
// finite = loss, every bad_count == 0 and grad_norm finite; the offender is the lowest rank with a
// bad loss (unit -1), else the lowest (unit, rank) with bad_count > 0.
// spike = finite, scalars->max_loss > 0 and loss > scalars->max_loss; its offender is unit -3 of
// no rank.
// overflow, where there is one: pairs of each block that had no room (ExpertPiecesOp::dropped),
// summed over all ranks, f32 [N]. Above 0 anywhere: nothing else of the step counts, the offender
// is unit -4 - i of no rank, i the first such block.
// applied = finite, no spike and no overflow. applied: adam_t += 1; else skipped += 1.
// clip_scale = min(1, clip / grad_norm) / loss_scale; clip <= 0, or an update that is not applied:
// 1 / loss_scale.
// With scaling, next_loss_scale = loss_scale but for:
// the loss is finite, gradients are not, nothing has overflown, and loss_scale * backoff_factor is
// no less than kLeastLossScale: scaled_down = 1, scale_downs += 1, clean_steps = 0,
// next_loss_scale = loss_scale * backoff_factor;
// applied: clean_steps += 1; at growth_interval it becomes 0 and
// next_loss_scale = loss_scale * growth_factor, unless that is above kMostLossScale.
struct StepStatsAttrs {
  int64_t units = 0;
  LossWeights losses;
  int64_t shard_world = 1;
  double clip = 0;
  LossScaling scaling = {};
  bool operator==(const StepStatsAttrs&) const = default;
};
template <class V>
struct StepStatsOp : StepStatsAttrs {
  using Attrs = StepStatsAttrs;
  static constexpr const char* kName = "step_stats";
  V rows, overflow, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.rows, Access::kRead, "rows");
    f(s.overflow, Access::kRead, "overflow");
    f(s.scalars, Access::kAccumulate, "scalars");
  }
};

// What elements of a flat parameter are in their parameter, whatever the mesh: flat element i in
// [begin, end), j = i - begin, is element
//   first + place / inner * outer_step + place % inner * step + j / length * stride + j % length
// of the parameter named by `key`, on the rank at `place` of those that split it; `inner`: how many
// of these split it along the inner of two axes or sets of axes, 0 where there is but one.
struct LogicalRun {
  int64_t begin = 0, end = 0;
  int64_t length = 1, stride = 0;
  int64_t first = 0, step = 0;
  uint64_t key = 0;
  int64_t inner = 0, outer_step = 0;
  bool operator==(const LogicalRun&) const = default;

  // Of j = 0.
  constexpr int64_t FirstAt(int64_t place) const {
    return inner == 0 ? first + place * step
                      : first + place / inner * outer_step + place % inner * step;
  }
  constexpr int64_t At(int64_t i, int64_t place) const {
    const int64_t j = i - begin;
    return FirstAt(place) + j / length * stride + j % length;
  }
};
using LogicalRuns = std::shared_ptr<const std::vector<LogicalRun>>;

// AdamW with decoupled weight decay (arXiv 1711.05101) on one shard, a no-op bit for bit unless
// scalars->applied.
//
// g = grad * clip_scale; m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g^2; t = scalars->adam_t;
// w = master * (1 - lr*wd*[i in decay]);
// master = w - lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps).
// f32; bias corrections in double. With `segments` lr, wd, b1, b2 and eps are those of the
// element's segment, lr the product scalars->lr * lr_scale, and every element decays by its wd.
//
// Moments that are bf16 are rounded stochastically (rounding.h) once master has followed them: an
// element's random bits follow from scalars->adam_t and from what `runs` say that it is of its
// parameter, so that they depend on no mesh. Runs are ascending and disjoint, and each decays whole
// or not at all; in none are gaps alone, whose zeros stay.
//
// master f32 [n]; m, v f32 or, with `runs`, both bf16 [n]; grad any [n]; compute (optional), bf16
// or f16 [n], receives the downcast of the new master, also when the step is skipped. decay holds
// ranges of the whole flat parameter; element i of the shard is flat element flat_begin + i.
struct AdamWAttrs {
  RangeList decay;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  UpdateSegments segments;  // of the whole flat parameter; null: none
  RankInt flat_begin;       // of this rank's shard in the flat parameter
  LogicalRuns runs;         // of the whole flat parameter
  RankInt place;            // of this rank among those that split it
  bool operator==(const AdamWAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.flat_begin, "flat_begin");
    f(s.place, "place");
  }
};
template <class V>
struct AdamWOp : AdamWAttrs {
  using Attrs = AdamWAttrs;
  static constexpr const char* kName = "adamw";
  V master, m, v, grad, compute, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.grad, Access::kRead, "grad");
    f(s.scalars, Access::kRead, "scalars");
    f(s.master, Access::kAccumulate, "master");
    f(s.m, Access::kAccumulate, "m");
    f(s.v, Access::kAccumulate, "v");
    f(s.compute, Access::kWrite, "compute");
  }
};

// --- Collectives. Executed by a Communicator (comm/communicator.h), not by the kernel table; they
// are ops like the others so that lifetimes and edges see them. scratch: staging the transport asks
// for (Capabilities), absent when it needs none.

// axes: the op joins this rank's group over them (runtime/base/mesh.h). Its communicator is the one
// of these axes and of the stream that issues it.

// full[r*n + i] = (shard of rank r)[i], r over the group.   Any dtype.
// In place when shard is slice `rank` of full; then `shard` is absent.
// Of f32 shards, full may be bf16 or f16: rounded to nearest even on the way, by transports that
// can (Communicator::RoundsInGathers).
struct AllGatherAttrs {
  AxisSet axes = Axis::kShard;
  bool operator==(const AllGatherAttrs&) const = default;
};
template <class V>
struct AllGatherOp : AllGatherAttrs {
  using Attrs = AllGatherAttrs;
  static constexpr const char* kName = "all_gather";
  V shard, full, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.shard, Access::kRead, "shard");
    f(s.full, s.shard ? Access::kWrite : Access::kAccumulate, "full");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// shard[i] = sum over r of (full of rank r)[rank*n + i], f32 accumulation in rank order, one
// rounding to the dtype.   full [world*n], shard [n].
struct ReduceScatterAttrs {
  AxisSet axes = Axis::kShard;
  bool operator==(const ReduceScatterAttrs&) const = default;
};
template <class V>
struct ReduceScatterOp : ReduceScatterAttrs {
  using Attrs = ReduceScatterAttrs;
  static constexpr const char* kName = "reduce_scatter";
  V full, shard, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.full, Access::kRead, "full");
    f(s.shard, Access::kWrite, "shard");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// buffer[i] = sum over r of (buffer of rank r)[i], f32 accumulation in rank order: the same bits on
// every rank.   f32, bf16 or f16 [n], in place.
struct AllReduceAttrs {
  AxisSet axes = Axis::kReplicate;
  bool operator==(const AllReduceAttrs&) const = default;
};
template <class V>
struct AllReduceOp : AllReduceAttrs {
  using Attrs = AllReduceAttrs;
  static constexpr const char* kName = "all_reduce";
  V buffer, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.buffer, Access::kAccumulate, "buffer");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// received[r*n + i] = (sent of rank r)[rank*n + i]: a piece from each rank to each. With counts
// only the live rows of a piece, of row_numel elements: the first sum over i of counts[r*m + i] of
// the piece for rank r. What is behind them arrives or not.
// Any dtype; sent, received [world*n], disjoint; counts i32 [world*m] optional.
struct AllToAllAttrs {
  AxisSet axes = Axis::kExpert;
  int64_t row_numel = 0;
  bool operator==(const AllToAllAttrs&) const = default;
};
template <class V>
struct AllToAllOp : AllToAllAttrs {
  using Attrs = AllToAllAttrs;
  static constexpr const char* kName = "all_to_all";
  V sent, counts, received;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.sent, Access::kRead, "sent");
    f(s.counts, Access::kRead, "counts");
    f(s.received, Access::kWrite, "received");
  }
};

}  // namespace millrace
