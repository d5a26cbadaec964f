// Which slots each expert has, in tests of the kernels that work on slots (kernels/ops/moe_ops.h).
#pragma once

#include <string>

#include "tests/kernels/support/memory.h"

namespace millrace::test {

struct ExpertLoad {
  int64_t experts, slots;  // slots: the most there can be
  TensorView offsets;      // i32 [experts + 1]

  int64_t begin(int64_t expert) const { return static_cast<int64_t>(Get(offsets, expert)); }
  int64_t live() const { return begin(experts); }
  int64_t ExpertOf(int64_t slot) const {
    int64_t e = 0;
    while (begin(e + 1) <= slot) ++e;
    return e;
  }
  std::string Text() const {
    std::string text = "slots " + std::to_string(slots) + ", experts begin at";
    for (int64_t e = 0; e <= experts; ++e) text += " " + std::to_string(begin(e));
    return text;
  }
};

// Of all kinds: no slot live, all of them, all of one expert's, one for each expert, many of few.
ExpertLoad PickLoad(Memory& memory, Random& random, int repeat);

// The first rows of a view.
inline TensorView FirstRows(TensorView view, int64_t rows) {
  view.layout.dims[0] = rows;
  return view;
}

}  // namespace millrace::test
