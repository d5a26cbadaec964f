// Argument structs of losses; letters, dtypes and aliasing as in kernels/ops/model_ops.h.
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"
#include "runtime/base/mesh.h"

namespace millrace {

enum class LossOutput { kLossOnly, kLossAndGradient };

// The clipped policy gradient (arXiv 1707.06347; with `kl`, arXiv 2402.03300).
struct PolicyLoss {
  float clip_low = 0.2f, clip_high = 0.2f;  // a ratio counts from 1 - clip_low to 1 + clip_high
  float kl = 0;                             // factor of the divergence from reference_logprobs
  bool operator==(const PolicyLoss&) const = default;
};

// What a policy gradient tallies of the targets that count, f32 [kCount].
struct PolicyTally {
  static constexpr int64_t kTargets = 0, kClipped = 1, kRatios = 2, kDivergence = 3, kCount = 4;
};

// Cross entropy of a chunk of rows. For row r of the chunk (row_begin + r = b*T + t of the
// microbatch), target y = targets[b,t] of weight w = weights[b,t] (absent: 1):
// loss_sum += w * (logsumexp(logits[r, :V]) - logits[r, y]); with gradient, in place,
// logits[r, v] = (softmax(logits[r, :V])[v] - [v == y]) * w * loss_weight
//                * scalars->inv_valid_tokens * scalars->loss_scale for v < V, 0 for V <= v < Vp.
// A target < 0, or of weight 0, is not counted and its gradient row is 0.
// logits any [rows,Vp] accumulate (loss only: read); targets i32 [B,T] strided, parity as EmbedOp;
// weights f32 [B,T] strided, optional, parity by values_parity_stride;
// loss_sum f64 [1] (=|+=), summed in a fixed order.
// row_loss f64 [rows] optional, dense: the terms of that sum, 0 of targets that do not count.
// scalars->inject_loss_nan != 0 makes loss_sum NaN (fault injection).
//
// A policy gradient where `advantages` and `old_logprobs` are there (f32, as weights are). With
// l = f32(logits[r, y] - logsumexp(logits[r, :V])), A = advantages[b,t], and
// ratio = e^(l - old_logprobs[b,t]), in double:
// loss_sum += w * (-min(ratio A, clamp(ratio, 1 - clip_low, 1 + clip_high) A) + kl k), where
// k = e^(reference_logprobs[b,t] - l) - (reference_logprobs[b,t] - l) - 1. The gradient is that
// above times -d/dl of what is in brackets; so where old_logprobs are l, that of weights w A.
// tally f32 [PolicyTally] (=|+=), sums over the targets that count: 1; 1 where the clamped product
// is the smaller one; ratio; k, or ratio - 1 - ln ratio where there are no reference_logprobs.
struct CrossEntropyAttrs {
  RankInt row_begin;
  int64_t vocab = 0;
  int64_t parity_stride = 0;
  int64_t values_parity_stride = 0;  // of all f32 [B,T]
  double loss_weight = 1;            // of this loss in the step's; loss_sum is not multiplied by it
  PolicyLoss policy;                 // where there are advantages
  LossOutput output = LossOutput::kLossAndGradient;
  Update loss_update = Update::kOverwrite;
  Update tally_update = Update::kOverwrite;
  bool operator==(const CrossEntropyAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.row_begin, "row_begin");
  }
};
template <class V>
struct CrossEntropyOp : CrossEntropyAttrs {
  using Attrs = CrossEntropyAttrs;
  static constexpr const char* kName = "cross_entropy";
  V logits, targets, weights, old_logprobs, advantages, reference_logprobs;
  V loss_sum, row_loss, tally, scalars, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.targets, Access::kRead, "targets");
    f(s.weights, Access::kRead, "weights");
    f(s.old_logprobs, Access::kRead, "old_logprobs");
    f(s.advantages, Access::kRead, "advantages");
    f(s.reference_logprobs, Access::kRead, "reference_logprobs");
    f(s.scalars, Access::kRead, "scalars");
    f(s.logits, s.output == LossOutput::kLossOnly ? Access::kRead : Access::kAccumulate, "logits");
    f(s.loss_sum, Updated{s.loss_update}, "loss_sum");
    f(s.row_loss, Access::kWrite, "row_loss");
    f(s.tally, Updated{s.tally_update}, "tally");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

}  // namespace millrace
