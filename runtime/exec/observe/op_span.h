// When an op of a step ran, by the device's clock.
#pragma once

#include <string>

#include "runtime/plan/plan_op.h"

namespace millrace {

struct OpSpan {
  std::string label, kind;
  StreamId stream = StreamId::kCompute;
  double begin_ms = 0, end_ms = 0;  // since the timer's SetOrigin
};

}  // namespace millrace
