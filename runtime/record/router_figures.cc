#include "runtime/record/router_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"

namespace millrace {
namespace {

double SumOf(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

RouterFigures FiguresOf(const std::string& block, std::span<const float> loads,
                        std::span<const float> probabilities) {
  const double mean = SumOf(loads) / static_cast<double>(loads.size()), sum = SumOf(probabilities);
  RouterFigures figures{.block = block,
                        .max_load = static_cast<double>(*std::ranges::max_element(loads)) / mean,
                        .entropy = 0,
                        .loads = {loads.begin(), loads.end()}};
  for (const float p : probabilities) {
    const double share = static_cast<double>(p) / sum;
    if (share != 0) figures.entropy -= share * std::log(share);
  }
  return figures;
}

}  // namespace

std::vector<RouterFigures> RouterFiguresOf(const std::vector<RouterTally>& tallies,
                                           std::span<const float> values) {
  std::vector<RouterFigures> figures;
  for (const auto& [block, experts] : tallies) {
    const auto n = static_cast<size_t>(experts);
    MR_CHECK_LE(2 * n, values.size(), "tallies of block {}", block);
    figures.push_back(FiguresOf(block, values.first(n), values.subspan(n, n)));
    values = values.subspan(2 * n);
  }
  MR_CHECK(values.empty(), "{} numbers more than the plan's tallies", values.size());
  return figures;
}

}  // namespace millrace
