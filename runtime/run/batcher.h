// The token batches of a run: which windows a step reads, in the order that every world size
// shares.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/data/sample_order.h"
#include "runtime/data/token_source.h"

namespace millrace {

class Batcher {
 public:
  Batcher(std::shared_ptr<const TokenSource> source, uint64_t shuffle_seed,
          const StepLayout& layout);

  // tokens [accumulate, micro_batch, T+1] of the data rank `rank` in `step`.
  std::vector<int32_t> Step(int64_t step, int64_t rank) const;

  // Targets of one step over all data ranks: global_batch * T.
  int64_t valid_tokens() const;
  const StepLayout& layout() const { return layout_; }

 private:
  std::shared_ptr<const TokenSource> source_;
  SampleOrder order_;
  StepLayout layout_;
};

// Held-out windows in order: row b of batch `index` on the data rank `rank` is window
// (index * world + rank) * micro_batch + b, modulo the number of windows.
// tokens [micro_batch, T+1].
std::vector<int32_t> EvalTokens(const TokenSource& source, int64_t index, int64_t rank,
                                const StepLayout& layout);

// Batches that read each held-out window at most once, at most `wanted`; 1 when there are fewer
// windows than one batch has rows (they repeat).
int64_t EvalBatches(const TokenSource& source, int64_t wanted, const StepLayout& layout);

}  // namespace millrace
