// An op where a timeline shows it, planned or measured.
#pragma once

#include <string>

#include "runtime/plan/plan_op.h"

namespace millrace {

struct TimelineOp {
  std::string label, kind;  // kind: OpName
  StreamId stream = StreamId::kCompute;
  double begin = 0, end = 0;  // ms from the step's begin, finite, 0 <= begin <= end
};

}  // namespace millrace
