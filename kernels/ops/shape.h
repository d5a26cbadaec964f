// Operand of a shape-only op: what WhyUnsupported, WorkspaceBytes, Cost and KeyOf look at.
#pragma once

#include "runtime/base/tensor_view.h"

namespace millrace {

struct Shape {
  Layout layout;
  bool present = false;
  explicit operator bool() const { return present; }
};

}  // namespace millrace
