// What `doctor --measure` times and how it says so; measure_machine.cc is the verb.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/base/quantile.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {

// Of what is timed in short batches: median, and in words the least and the most.
struct Samples {
  std::vector<double> values;
  double median() const { return Quantile(values, 0.5); }
  std::string Text(double unit) const;  // "4031 (3998 to 4044)", in units
};

inline constexpr int kRounds = 5;

template <class F>
Samples Repeated(F&& once) {
  Samples samples;
  for (int round = 0; round < kRounds; ++round) samples.values.push_back(once());
  return samples;
}

// The session's arena, cut from its begin.
class Cut {
 public:
  Cut(std::byte* begin, int64_t bytes) : next_(begin), left_(bytes) {}
  // Error(kDoesNotFit) where nothing is left.
  TensorView Take(DType dtype, std::initializer_list<int64_t> dims);
  int64_t left() const { return left_; }

 private:
  std::byte* next_;
  int64_t left_;
};

// A collective: gathers and reduce-scatters between all ranks by size, the slowest rank's time.
// Their start and rate (FitLink of bytes sent) go into `machine`, as the link's or, over peers'
// memory, the peers'. In words what was found.
std::string MeasureCollectives(Session& session, const Environment& environment, Cut arena,
                               Stopwatch& watch, Machine& machine);

}  // namespace millrace
