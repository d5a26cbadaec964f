#include "runtime/exec/observe/op_ranges.h"

#include <fmt/core.h>

namespace millrace {

RangeName OpRanges::NameOf(const PlanOp& op) {
  std::map<std::string, RangeName>& of_kind = names_[op.op.index()];
  const auto known = of_kind.find(op.label);
  if (known != of_kind.end()) return known->second;
  const RangeName name = ranges_.Register(fmt::format("{} {}", OpName(op.op), op.label));
  of_kind.emplace(op.label, name);
  return name;
}

}  // namespace millrace
