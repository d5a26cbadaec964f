// Comparison with a double-precision reference, element by element, with a bound per element.
//
// A reference computes for each element its value and a bound on the error of any f32 evaluation,
// derived to first order in the unit roundoff u = 2^-24: a sum of n terms in any order is within
// n*u*sum|terms| (Higham, Accuracy and Stability, 4.2), a product or quotient adds u relative. The
// rounding to the output's dtype is added here.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/tensor_view.h"

namespace millrace::test {

inline constexpr double kU = 0x1p-24;

struct Expected {
  double value = 0;
  double bound = 0;
};

// One per element, last dimension fastest.
using Reference = std::vector<Expected>;

// |got - value| <= bound + rounding to the dtype, for every element; CHECKs once
// and names the worst element.
void CheckNear(const TensorView& got, const Reference& reference, const char* name);

// sum of terms with its bound.
struct SumOf {
  double value = 0, magnitude = 0;
  int64_t terms = 0;
  void Add(double term) {
    value += term;
    magnitude += term < 0 ? -term : term;
    ++terms;
  }
  double bound(double extra_terms = 1) const {
    return (static_cast<double>(terms) + extra_terms) * kU * magnitude;
  }
};

}  // namespace millrace::test
