// Which ops of a program become one RowLinearOp: of a step that decodes one row on a GPU, products
// with the norm ahead of them and what is behind them. In order those behind a norm do, with their
// GELU: without one the product's own kernel is faster, rotations and SwiGLUs stay ops.
#pragma once

#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/lower.h"

namespace millrace {

// Changes the forward of a program that has rows of caches, one row, and is for CUDA; any other is
// left as it is. A line of Program::choices for each op.
void JoinRowLinears(const SemanticGraph& graph, const LowerOptions& options, Program* program);

}  // namespace millrace
