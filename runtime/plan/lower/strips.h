// Rows between blocks lie in strips (RowStrip), each of which is exchanged by itself. What is done
// to the rows of a strip between two exchanges, norms and sums, belongs to neither product beside
// it: it goes in order with the exchanges, on their stream, so that a strip's way from one product
// to the next (sum, norm, gather) lies under a product of another strip or of weight gradients.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/lower/lowering.h"

namespace millrace {

// Whether the rows of `value` are those between two exchanges.
bool BetweenExchanges(const SemanticGraph& graph, const Value& value);

// For each strip of the rows of `value` emits what each(part, push) pushes: `part` is `op` on its
// rows, and `rows` are the operands of as many rows, absent ones included; push(op) and push(op,
// suffix) are Lowering::Push for an op of the strip.
template <class Op, class Each>
void PushStrips(Lowering& l, const Node& node, const Value& value, const Op& op,
                std::initializer_list<View Op::*> rows, Each&& each) {
  const bool between = BetweenExchanges(l.graph(), value);
  int number = 0;
  for (const RowStrip& strip : StripsOf(l.graph(), value)) {
    Op part = op;
    for (View Op::*operand : rows)
      if (part.*operand) part.*operand = Rows(part.*operand, strip.begin, strip.rows);
    each(part, [&](KernelOp pushed, const std::string& suffix = "") {
      l.Push(std::move(pushed), node, suffix);
      if (between) l.last().strip = number;
    });
    ++number;
  }
}
template <class Op>
void PushStrips(Lowering& l, const Node& node, const Value& value, const Op& op,
                std::initializer_list<View Op::*> rows) {
  PushStrips(l, node, value, op, rows, [](const Op& part, const auto& push) { push(part); });
}

// Moves each op of a strip ahead of those of later strips, and of what reads no parameter (weight
// gradients, which wait for nothing), as far as operands allow.
void OrderByStrip(std::vector<ProgramOp>& ops, const std::vector<ProgramBuffer>& buffers);

}  // namespace millrace
