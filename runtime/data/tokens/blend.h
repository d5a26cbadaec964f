// Which of several sources each sample comes from: Megatron's rule. Sample k is drawn from the
// source that is furthest behind its share, the one with the largest w[i] * max(k, 1) - taken[i],
// among equals the first; w are the weights over their sum, in double. No randomness: the order is
// a function of the weights alone, the same for every rank of every world.
//
//   k     0 1 2 3 4 5 6 7 8 9        weights 0.5, 0.3, 0.2
//   from  0 1 2 0 1 0 2 0 1 0        after any k, source i has been drawn more than k w[i] - (d-1)
//                                    and less than k w[i] + 1 times
//
// State is the d counters `taken`. From those before sample k, any later sample is d operations per
// sample away; a checkpoint keeps them, so that a run goes on without drawing from its beginning.
//
// Source  build_blending_indices in megatron/core/datasets/helpers.cpp, whose doubles it repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace {

// What has been drawn before sample `sample`.
struct BlendState {
  int64_t sample = 0;
  std::vector<int64_t> taken;  // of each source; their sum is `sample`
  bool operator==(const BlendState&) const = default;
};

class Blend {
 public:
  // weights: at least one, each above 0 and finite; else Error(kInvalidArgument).
  explicit Blend(const std::vector<double>& weights);

  int64_t sources() const noexcept { return static_cast<int64_t>(shares_.size()); }
  double share(int64_t source) const { return shares_.at(static_cast<size_t>(source)); }

  BlendState Begin() const;               // before sample 0
  int64_t Draw(BlendState& state) const;  // the source of sample state.sample, and past it
  // To the state before `sample`, which is not behind `state`. One source: at once.
  void Advance(BlendState& state, int64_t sample) const;
  // Whether the rule can have led to `state`: its counters add up and are within the bounds above.
  bool IsPossible(const BlendState& state) const;

 private:
  std::vector<double> shares_;
};

}  // namespace millrace
