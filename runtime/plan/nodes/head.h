// The output matrix and what follows it: the loss, or one row of logits.
//
// kHeadLossNode    in: x, weight [Vp,C], targets   out: loss, d_x?   grad: weight
//                  Composite, by chunks of rows; when it trains, its gradients are formed in the
//                  forward, while the logits exist: those of the loss times its weight.
// kHeadLogitsNode  in: x, weight                   out: logits of row generate_row
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kHeadLossNode, kHeadLogitsNode;

// One head for each loss of the model; their gradients add up, of shared parameters and of x.
void Head(ForwardBuilder& b, ValueId x, const std::string& weight, HeadMode mode,
          const std::string& loss = "loss");

}  // namespace millrace
