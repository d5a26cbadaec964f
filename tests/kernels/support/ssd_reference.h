// The scan of SsdScanOp and its gradients by the plain recurrence, in double, position by position:
// no chunks. With each value goes the sum of the magnitudes of all products that it is a sum of,
// which bounds of rounding errors are multiples of.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::test {

// A value, and the same sum of products over magnitudes.
struct Tracked {
  double value = 0, magnitude = 0;
  friend Tracked operator*(Tracked a, Tracked b) {
    return {a.value * b.value, a.magnitude * b.magnitude};
  }
  Tracked& operator+=(Tracked b) {
    value += b.value, magnitude += b.magnitude;
    return *this;
  }
};

struct SsdProblem {
  int64_t batch = 0, length = 0, heads = 0, channels = 0, groups = 0, states = 0;
  std::vector<double> x = {}, d_out = {};  // [B,T,H,P]
  std::vector<double> b = {}, c = {};      // [B,T,G,N]
  std::vector<double> dt = {};             // [B,T,H]
  std::vector<double> a_log = {}, d = {};  // [H]
};

struct SsdReference {
  std::vector<Tracked> out, d_x;
  std::vector<Tracked> d_b, d_c;
  std::vector<Tracked> d_dt;
  std::vector<Tracked> d_a_log, d_d;
  // The part of d_dt that comes from decays.
  std::vector<Tracked> d_decay;
  double longest_decay = 0;  // the largest sum of |dt A| over a sequence
};

SsdReference SsdByRecurrence(const SsdProblem& problem);

}  // namespace millrace::test
