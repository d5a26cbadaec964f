// Rows of a table by token, with a row per position added.
//
// kEmbeddingNode      in: tokens, table, positions?, documents?   out: x [R,C]
// kEmbeddingGradNode  in: tokens, d_x, documents?                 grad: table, positions?
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kEmbeddingNode, kEmbeddingGradNode;

// A row of the table for each element of an i32 input. `positions`: "" for none.
ValueId Embedding(ForwardBuilder& b, const std::string& table, const std::string& positions,
                  const std::string& label, const std::string& input = "tokens");

}  // namespace millrace
