// Activations of one element in double, with bounds for an f32 evaluation.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/policies.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {

// A function of x and its derivative through the sigmoid of z: s has a relative error of (8 + 4|z|)
// u, because z carries 2u and e^z turns that into 2|z|u; 1 - s has an absolute error of 2u. s may
// be 0 where e^-z overflows, hence kTiny.
struct Gated {
  double value, value_bound, derivative, derivative_bound;
};

inline constexpr double kTiny = 0x1p-127;

inline double SigmoidRelative(double z) { return (8 + 4 * std::abs(z)) * kU; }

// x * sigmoid(z(x)).
inline Gated GatedOf(double x, double z, double z_derivative) {
  const double s = 1 / (1 + std::exp(-z)), complement = 1 / (1 + std::exp(z));
  const double relative = SigmoidRelative(z), slope = x * s * z_derivative;
  return {x * s, relative * std::abs(x * s) + kTiny * std::abs(x), s + slope * complement,
          relative * (s + std::abs(slope * complement)) + 4 * kU * (std::abs(slope) + s) +
              kTiny * (1 + std::abs(x * z_derivative))};
}

inline Gated GeluOf(double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  return GatedOf(x, 2 * root * (x + 0.044715 * x * x * x), 2 * root * (1 + 3 * 0.044715 * x * x));
}
inline Gated SiluOf(double x) { return GatedOf(x, x, 1); }

// max(x, 0)^2: a rounding of the square, and of the doubled slope none.
inline Gated Relu2Of(double x) {
  const double r = std::max(x, 0.0);
  return {r * r, kU * r * r + kTiny, 2 * r, 0};
}

inline Gated ActOf(ActivationKind kind, double x) {
  return kind == ActivationKind::kGelu    ? GeluOf(x)
         : kind == ActivationKind::kRelu2 ? Relu2Of(x)
                                          : SiluOf(x);
}

}  // namespace millrace::test
