#include "runtime/run/batcher.h"

#include <algorithm>
#include <utility>

namespace millrace {

Batcher::Batcher(std::shared_ptr<const TokenSource> source, uint64_t shuffle_seed,
                 const StepLayout& layout)
    : source_(std::move(source)), order_(source_->windows(), shuffle_seed), layout_(layout) {}

std::vector<int32_t> Batcher::Step(int64_t step, int64_t rank) const {
  const int64_t row_tokens = source_->seq_len() + 1;
  std::vector<int32_t> tokens(
      static_cast<size_t>(layout_.accumulate * layout_.micro_batch * row_tokens));
  int32_t* out = tokens.data();
  for (int64_t m = 0; m < layout_.accumulate; ++m)
    for (int64_t b = 0; b < layout_.micro_batch; ++b, out += row_tokens)
      source_->Read(order_.Window(layout_.Sample({step, m, rank, b})), out);
  return tokens;
}

int64_t Batcher::valid_tokens() const { return layout_.GlobalBatch() * source_->seq_len(); }

std::vector<int32_t> EvalTokens(const TokenSource& source, int64_t index, int64_t rank,
                                const StepLayout& layout) {
  const int64_t row_tokens = source.seq_len() + 1;
  std::vector<int32_t> tokens(static_cast<size_t>(layout.micro_batch * row_tokens));
  for (int64_t b = 0; b < layout.micro_batch; ++b) {
    const int64_t window = (index * layout.world + rank) * layout.micro_batch + b;
    source.Read(window % source.windows(), tokens.data() + b * row_tokens);
  }
  return tokens;
}

int64_t EvalBatches(const TokenSource& source, int64_t wanted, const StepLayout& layout) {
  return std::clamp<int64_t>(source.windows() / (layout.world * layout.micro_batch), 1,
                             std::max<int64_t>(wanted, 1));
}

}  // namespace millrace
