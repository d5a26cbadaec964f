// The output matrix and what follows it: the loss, or logits, or the losses of tokens.
//
// kHeadLossNode    in: x, weight [Vp,C], targets, weights?, old_logprobs?, advantages?,
//                  reference_logprobs?             out: loss, d_x?   grad: weight
//                  Composite, by chunks of rows; when it trains, its gradients are formed in the
//                  forward, while the logits exist: those of the loss times its weight. A policy
//                  gradient (LossSpec::policy) tallies PolicyTally.
// kHeadLogitsNode  in: x, weight                   out: logits of row generate_row
// kNextLogitsNode  in: x, weight                   out: logits of the last rows, as many as it has:
//                  as the loss sees them. Ranks along tensor form columns each, of their rows of
//                  the weight, and gather them. A kSampleNode behind it draws from them, by
//                  infer/sampling (attention/cached_rows.h).
// kTokenLossesNode in: x, weight, targets          out: "token_losses", f64: the terms of the loss,
//                  with its bits, of all rows of a data rank on each of its ranks: [n, B, T/n] of
//                  n ranks along context, rank by rank (run/eval/score.h). 0: not counted.
//                  With kTokenScores also "likeliest", i32, likewise: the token of the largest
//                  logit of each row, the lowest of equals; -1: a logit is not finite.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kHeadLossNode, kHeadLogitsNode, kNextLogitsNode, kTokenLossesNode;

// One head for each loss of the model; their gradients add up, of shared parameters and of x.
void Head(ForwardBuilder& b, ValueId x, const std::string& weight, HeadMode mode,
          const std::string& loss = "loss");

}  // namespace millrace
