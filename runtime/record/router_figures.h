// How evenly routers have used their experts in a step, from what the step tallied.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// Of a block with experts, over all rows of a step.
struct RouterFigures {
  std::string block;  // "h.3"
  // The largest load of an expert over the mean load: 1 is even, E / K the worst.
  double max_load = 0;
  // Of the mean probabilities over the experts, in nats: ln E is even, 0 the worst.
  double entropy = 0;
  // Of each expert, how many pairs of token and expert have chosen it. Of a router's tally they add
  // up to the step's tokens times top_k.
  std::vector<int64_t> loads = {};
  bool operator==(const RouterFigures&) const = default;
};

// What a block with experts tallies in a step, f32 [2,E]: of each expert its load, then the sum of
// its probabilities (RouterStatsOp).
struct RouterTally {
  std::string block;
  int64_t experts = 0;
};

// `values`: what the tallies hold, end to end; loads are integers, exact below 2^24 an expert. NaN
// where a probability is not finite.
std::vector<RouterFigures> RouterFiguresOf(const std::vector<RouterTally>& tallies,
                                           std::span<const float> values);

}  // namespace millrace
