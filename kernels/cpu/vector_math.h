// Elementary functions and reductions whose bits depend on operand values and lengths only.
//
// Functions   Branch-free scalar code: loops over them vectorise, and a loop's tail gives the bits
//             of its body.
// Reductions  Eight explicit lanes: the order of additions is written here, not chosen by a
//             compiler or by an address.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace millrace::cpu {

// e^x within 2 ulp (tested over all floats); subnormal results, infinities and NaN as in std::exp.
// Cody-Waite reduction, polynomial of Cephes' expf; 2^n is applied in two halves, so that no
// intermediate overflows.
inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f,
                  kRound = 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  float c = x > 89.0f ? 89.0f : x;
  c = c < -105.0f ? -105.0f : c;
  const float shifted = std::fma(c, kLog2E, kRound);
  const float n = shifted - kRound;
  float r = std::fma(n, -kLn2High, c);
  r = std::fma(n, -kLn2Low, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float scale1 = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float scale2 = std::bit_cast<float>(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * scale1 * scale2;
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// tanh-GELU: 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
// No cancellation for x << 0.
inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.07135481627159262f;  // 0.044715 * that

inline float Gelu(float x) { return x * Sigmoid(x * std::fma(kGeluCubic, x * x, kGeluLinear)); }

inline float GeluDerivative(float x) {
  const float s = Sigmoid(x * std::fma(kGeluCubic, x * x, kGeluLinear));
  return std::fma(x * s * (1.0f - s), std::fma(3.0f * kGeluCubic, x * x, kGeluLinear), s);
}

using Lanes = float __attribute__((vector_size(32)));
inline constexpr int64_t kLanes = 8;

inline Lanes LoadLanes(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The n < kLanes first lanes from p, the others `fill`.
inline Lanes LoadLanes(const float* p, int64_t n, float fill) {
  Lanes v = {fill, fill, fill, fill, fill, fill, fill, fill};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
}

inline float SumOfLanes(Lanes v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// sum of term(Lanes of x, Lanes of y) over n elements; lanes past the end enter `term` as 0.
template <class Term>
inline float ReduceSum(const float* x, const float* y, int64_t n, Term term) {
  Lanes a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a += term(LoadLanes(x + i), LoadLanes(y + i));
    b += term(LoadLanes(x + i + kLanes), LoadLanes(y + i + kLanes));
    c += term(LoadLanes(x + i + 2 * kLanes), LoadLanes(y + i + 2 * kLanes));
    d += term(LoadLanes(x + i + 3 * kLanes), LoadLanes(y + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a += term(LoadLanes(x + i), LoadLanes(y + i));
  if (i < n) b += term(LoadLanes(x + i, n - i, 0.0f), LoadLanes(y + i, n - i, 0.0f));
  return SumOfLanes((a + b) + (c + d));
}

inline float Sum(const float* x, int64_t n) {
  return ReduceSum(x, x, n, [](Lanes v, Lanes) { return v; });
}

inline float Dot(const float* x, const float* y, int64_t n) {
  return ReduceSum(x, y, n, [](Lanes v, Lanes w) { return v * w; });
}

// Reductions in double: a term sees its operands converted, so that neither it
// nor the sum rounds to float.
using DoubleLanes = double __attribute__((vector_size(32)));

inline DoubleLanes LoadInDouble(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }

// As ReduceSum; `term` takes lanes or, past the last whole ones, single doubles.
template <class Term>
inline double ReduceSumInDouble(const float* x, const float* y, int64_t n, Term term) {
  DoubleLanes sums[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t k = 0; k < 4; ++k)
      sums[k] += term(LoadInDouble(x + i + 4 * k), LoadInDouble(y + i + 4 * k));
  double tail = 0;
  for (; i < n; ++i) tail += term(double{x[i]}, double{y[i]});
  const DoubleLanes sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return ((sum[0] + sum[2]) + (sum[1] + sum[3])) + tail;
}

inline double SumInDouble(const float* x, int64_t n) {
  return ReduceSumInDouble(x, x, n, [](auto v, auto) { return v; });
}

inline double DotInDouble(const float* x, const float* y, int64_t n) {
  return ReduceSumInDouble(x, y, n, [](auto v, auto w) { return v * w; });
}

// sum of (x[i] - mean)^2.
inline double SumSquaredDeviationsInDouble(const float* x, double mean, int64_t n) {
  return ReduceSumInDouble(x, x, n, [mean](auto v, auto) { return (v - mean) * (v - mean); });
}

// Largest x[i]; NaNs are passed over; -infinity for n = 0.
inline float Max(const float* x, int64_t n) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Lanes a = LoadLanes(x, 0, kLowest), b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Lanes v = LoadLanes(x + i), w = LoadLanes(x + i + kLanes);
    a = v > a ? v : a;
    b = w > b ? w : b;
  }
  float max = kLowest;
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  a = a > b ? a : b;
  for (int64_t lane = 0; lane < kLanes; ++lane) max = a[lane] > max ? a[lane] : max;
  return max;
}

// x[i] = sqrt(x[i]), correctly rounded. std::sqrt may set errno, which keeps loops over it scalar.
inline void Sqrt(float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_ps(x + i, _mm256_sqrt_ps(_mm256_loadu_ps(x + i)));
  for (; i < n; ++i) x[i] = std::sqrt(x[i]);
}

}  // namespace millrace::cpu
