// What a profiler shows for an op that is issued: "matmul h.3/mlp.up", "all_gather gather/h.3".
#pragma once

#include <array>
#include <map>
#include <string>
#include <variant>

#include "runtime/base/profiler_ranges.h"
#include "runtime/plan/plan_op.h"

namespace millrace {

// Names are put together when an op is seen for the first time: where a step is
// recorded, when it is bound.
class OpRanges {
 public:
  explicit OpRanges(ProfilerRanges& ranges) : ranges_(ranges) {}
  RangeName NameOf(const PlanOp& op);

 private:
  ProfilerRanges& ranges_;
  // By kind and label.
  std::array<std::map<std::string, RangeName>, std::variant_size_v<KernelOp::Alternatives>> names_;
};

}  // namespace millrace
