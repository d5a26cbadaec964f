// Executes graphs and programs on symbols instead of numbers. A symbol is a hash of the expression
// that computed a value, so two symbols are equal when the same ops were applied to the same
// operands. A graph has no buffers and nothing to get wrong about them; a program that gives the
// same symbols has read what it meant to read, whatever it wrote in place.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/lower.h"

namespace millrace::test {

using Symbol = uint64_t;

struct Symbols {
  // Contributions to each parameter's gradient, in program order.
  std::map<ParamId, std::vector<Symbol>> gradients;
  Symbol loss = 0, logits = 0;
  bool operator==(const Symbols&) const = default;
};

// `loss_chunks`: how many chunks of rows the head loss is cut into.
Symbols Evaluate(const SemanticGraph& graph, int64_t loss_chunks);

// Throws std::logic_error naming op and operand when an op reads what no op has written, reads a
// mixture of two values, overwrites a parameter's gradient that has a contribution already or adds
// to one that has none, or overlaps an operand in a way that its definition does not allow.
Symbols Execute(const Program& program);

}  // namespace millrace::test
