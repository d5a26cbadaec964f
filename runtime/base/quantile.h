// Order statistics of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace millrace {

// One of the values, of which there is at least one: the nearest to the share q, in [0, 1], of them
// in order; of two as near the larger, so 0.5 of an even number is the upper median.
inline double Quantile(std::vector<double> values, double q) {
  const auto at = values.begin() +
                  static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

}  // namespace millrace
