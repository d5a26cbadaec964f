// The token batches of a run: which windows a step reads, in the order that every world size
// shares. Of several sources each has an order of its own, and a blend
// (runtime/data/tokens/blend.h) says which one a sample is from.
//
// Threads  One at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/data/tokens/blend.h"
#include "runtime/data/tokens/sample_order.h"
#include "runtime/data/tokens/token_source.h"

namespace millrace {

struct WeightedSource {
  std::shared_ptr<const TokenSource> source;
  double weight = 1;
};

class Batcher {
 public:
  // At least one source; all have the same seq_len. One is what the other constructor makes of it.
  Batcher(const std::vector<WeightedSource>& sources, uint64_t shuffle_seed,
          const StepLayout& layout);
  Batcher(std::shared_ptr<const TokenSource> source, uint64_t shuffle_seed,
          const StepLayout& layout);

  // tokens [accumulate, micro_batch, T+1] of the data rank `rank` in `step`.
  std::vector<int32_t> Step(int64_t step, int64_t rank) const;
  // What is known of each of them, likewise: bits of token_source.h.
  std::vector<uint8_t> StepMarks(int64_t step, int64_t rank) const;

  // What has been drawn before `step`. Steps that were served lately, those just behind them and
  // whatever GoOnFrom was given are at hand; else it is drawn again from the nearest of these.
  BlendState StateBefore(int64_t step) const;
  // A checkpoint's StateBefore. Error(kCheckpoint): not of these sources and weights.
  void GoOnFrom(const BlendState& state);
  int64_t sources() const { return blend_.sources(); }
  int64_t windows(int64_t source) const {
    return orders_.at(static_cast<size_t>(source)).windows();
  }

  // Targets of one step over all data ranks: global_batch * T.
  int64_t valid_tokens() const;
  const StepLayout& layout() const { return layout_; }

 private:
  void Remember(const BlendState& state) const;
  // Calls use(source, window, row) for each row of `rank`, in order.
  template <class F>
  void ForEachRow(int64_t step, int64_t rank, F&& use) const;

  std::vector<std::shared_ptr<const TokenSource>> sources_;
  std::vector<SampleOrder> orders_;
  Blend blend_;
  StepLayout layout_;
  mutable std::deque<BlendState> recent_;  // found on the way
};

// Held-out windows in order: row b of batch `index` on the data rank `rank` is window
// (index * world + rank) * micro_batch + b, modulo the number of windows.
// tokens [micro_batch, T+1].
std::vector<int32_t> EvalTokens(const TokenSource& source, int64_t index, int64_t rank,
                                const StepLayout& layout);
std::vector<uint8_t> EvalMarks(const TokenSource& source, int64_t index, int64_t rank,
                               const StepLayout& layout);

// Batches that read each held-out window at most once, at most `wanted`; 1 when there are fewer
// windows than one batch has rows (they repeat).
int64_t EvalBatches(const TokenSource& source, int64_t wanted, const StepLayout& layout);

}  // namespace millrace
