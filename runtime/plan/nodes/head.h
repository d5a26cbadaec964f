// The output matrix and what follows it: the loss, or one row of logits.
//
// kHeadLossNode    in: x, weight [Vp,C], targets   out: loss, d_x?   grad: weight
//                  Composite, by chunks of rows; when it trains, its gradients are formed in the
//                  forward, while the logits exist.
// kHeadLogitsNode  in: x, weight                   out: logits of row generate_row
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kHeadLossNode, kHeadLogitsNode;

void Head(ForwardBuilder& b, ValueId x, const std::string& weight, HeadMode mode);

}  // namespace millrace
