// What the host gives for a step, or for a microbatch of another plan.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

// What the host gives for the microbatches of one call, by source: those of this rank's data rank,
// the same on each of its ranks, dense [microbatches, B, T + extra - filled]. Which chunks of them
// are this rank's, the engine knows. A view: what it names must outlive the call.
class HostInputs {
 public:
  struct Input {
    std::string_view source;
    std::span<const std::byte> bytes;
  };
  // Of the source "tokens", where that is the only one.
  template <class Tokens>
  requires std::convertible_to<const Tokens&, std::span<const int32_t>> HostInputs(
      const Tokens& tokens)
      : inputs_{{"tokens", std::as_bytes(std::span<const int32_t>(tokens))}} {}
  HostInputs(std::initializer_list<Input> inputs) : inputs_(inputs) {}
  explicit HostInputs(std::vector<Input> inputs) : inputs_(std::move(inputs)) {}

  size_t size() const { return inputs_.size(); }
  const Input* find(std::string_view source) const {  // null: not given
    for (const Input& input : inputs_)
      if (input.source == source) return &input;
    return nullptr;
  }

 private:
  std::vector<Input> inputs_;
};

// What the losses of a step are divided by, over all ranks and microbatches.
struct LossTotals {
  LossTotals(int64_t targets) : targets(targets), weights(static_cast<double>(targets)) {}
  LossTotals(int64_t targets, double weights) : targets(targets), weights(weights) {}

  // Of another source of weights than "weights".
  struct OfSource {
    std::string source;
    int64_t targets = 0;  // those that there are
    double weights = 0;   // as below
  };

  int64_t targets;  // their count: of losses without weights (auxiliary ones, of experts)
  double weights;   // the sum of the weights given, of targets >= 0: of losses with them; may be 0
  std::vector<OfSource> others = {};  // of each such source that the run has
};

}  // namespace millrace
