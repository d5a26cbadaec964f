// A plan for a tiny model, from a description that a failing test can print.
#pragma once

#include <string>

#include "runtime/plan/schedule/planner.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {

struct PlanCase {
  ModelOptions model = TinyGpt2(3);
  Mesh mesh;
  PrecisionPolicy precision;
  LinearEncoding linears = LinearEncoding::kCompute;
  WeightGather gather = WeightGather::kCompute;
  Recompute recompute = Recompute::kNone;
  PlanOptions options;  // `shape` is filled in: 2 sequences of the model's length
  int64_t strips = 1;
  std::string kind = "train";  // or "eval", "generate"
};

Program ProgramOf(const PlanCase& c);
ShardLayout LayoutOf(const PlanCase& c);
// Of a run of this plan alone.
StateLayout StatesOf(PlanCase c);
// Not checked.
StepPlan PlanOf(PlanCase c);
std::string ToString(const PlanCase& c);

inline PrecisionPolicy Mixed(DType norms, DType accumulate, DType wire) {
  return {DType::kBF16, norms, accumulate, wire};
}

}  // namespace millrace::test
