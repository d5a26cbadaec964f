// Argument struct of the kernel op that draws next tokens. Conventions as in model_ops.h.
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"

namespace millrace {

inline constexpr int64_t kMaxSampleTop = 64;  // N below
inline constexpr int32_t kNoToken = -1;
// The stream of the generator that draws are taken from, "sample".
inline constexpr uint64_t kSampleStream = 0x73616d706c65;

// How a row's token is drawn: what changes from row to row and from step to step, in device memory.
struct SampleParams {
  float temperature = 1;  // 0: the likeliest token
  int32_t top_k = 0;      // 0: all
  float top_p = 1;        // in (0, 1]
  float min_p = 0;        // in [0, 1]
  uint64_t seed = 0;
  int64_t drawn = 0;  // tokens drawn before in the row's sequence
  int32_t top = 0;    // in [0, N]
  int32_t given = 0;  // a token's id and 1: that one, in place of a draw; 0: a draw
  bool operator==(const SampleParams&) const = default;
};
inline constexpr int64_t kSampleWords = sizeof(SampleParams) / sizeof(int64_t);
static_assert(kSampleWords * sizeof(int64_t) == sizeof(SampleParams));

// The next token of each row, its log-probability, and the `top` likeliest tokens with theirs.
// With V = vocab, l = logits[r, :V] and p the row's params; tokens are ordered by falling l, ties
// by the lower id; -0 is 0:
// logprob[r] = l[token[r]] - logsumexp(l): of the logits as they are. top_* likewise, in order;
// from place `top` on ids are kNoToken and log-probabilities 0.
// given > 0: token[r] is given - 1, which is below V. Otherwise, with
// temperature 0: token[r] is the first in order. Else each token has the integer weight
//   w[v] = floor(2^30 e^-y) * 2^10 rounded down, y = (max l - l[v]) / temperature; 0 where y >= 28
// in f32 (kernels/ops/sample_row.cc has the steps, which the backends share bit for bit), and
//   top_k: of 0 < top_k < V the first top_k tokens stay;
//   top_p < 1: then the fewest first tokens stay whose weights add to ceil(top_p * sum) or more;
//   min_p > 0: then the first tokens stay whose weights add to as much as those of all v with
//              w[v] >= ceil(min_p * 2^40).
// With M the sum of the weights that stay, token[r] is the first in order at which the sum of
// weights is above floor(u M / 2^64), where u is the first two words, the first above the second,
// of PhiloxBlock(seed, kSampleStream, drawn). Sums are of integers: no order of additions, no batch
// and no backend changes a token.
// A row with a logit that is not finite: token and top_ids kNoToken, log-probabilities NaN.
// On the CPU, and in_order on CUDA, log-probabilities have the bits of CrossEntropyOp's loss,
// rounded to f32: of as many columns Vp.
// logits any [R,Vp]; params i64 [R,kSampleWords], a SampleParams each; token i32 [R];
// logprob f32 [R]; top_ids i32 [R,N] and top_logprobs f32 [R,N] optional, together; all but logits
// dense. Vp < 2^24.
struct SampleAttrs {
  int64_t vocab = 0;
  bool in_order = false;
  bool operator==(const SampleAttrs&) const = default;
};
template <class V>
struct SampleOp : SampleAttrs {
  using Attrs = SampleAttrs;
  static constexpr const char* kName = "sample";
  V logits, params, token, logprob, top_ids, top_logprobs;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.logits, Access::kRead, "logits");
    f(s.params, Access::kRead, "params");
    f(s.token, Access::kWrite, "token");
    f(s.logprob, Access::kWrite, "logprob");
    f(s.top_ids, Access::kWrite, "top_ids");
    f(s.top_logprobs, Access::kWrite, "top_logprobs");
  }
};

}  // namespace millrace
