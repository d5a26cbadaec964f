// Rows of tokens that are several documents end to end.
//
// kDocumentsNode  in: an i32 input   out: i32 [B,T], what a microbatch reads of it
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kDocumentsNode;

// For the nodes that are emitted from here on: attention, positions, convolutions and scans stop at
// the documents that the input says, the first position of its document for each position.
// Error(kConfig) where ranks share sequences.
void Documents(ForwardBuilder& b, const std::string& input);

}  // namespace millrace
