#include "runtime/run/data/batcher.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// The order of each source but the first has a seed of its own, so that two of the same length do
// not go through their windows alike.
constexpr uint64_t kSeedsApart = 0x9e3779b97f4a7c15;

// As many steps as may be in flight, and some.
constexpr size_t kRecentStates = 16;

std::vector<double> WeightsOf(const std::vector<WeightedSource>& sources) {
  std::vector<double> weights;
  for (const WeightedSource& one : sources) weights.push_back(one.weight);
  return weights;
}

int64_t EvalWindow(const TokenSource& source, int64_t index, int64_t rank, int64_t row,
                   const StepLayout& layout) {
  return ((index * layout.world + rank) * layout.micro_batch + row) % source.windows();
}

}  // namespace

Batcher::Batcher(std::shared_ptr<const TokenSource> source, uint64_t shuffle_seed,
                 const StepLayout& layout)
    : Batcher({{std::move(source), 1}}, shuffle_seed, layout) {}

Batcher::Batcher(const std::vector<WeightedSource>& sources, uint64_t shuffle_seed,
                 const StepLayout& layout)
    : blend_(WeightsOf(sources)), layout_(layout) {
  for (const WeightedSource& one : sources) {
    MR_CHECK_EQ(one.source->seq_len(), sources.front().source->seq_len(), "sources of a blend");
    orders_.emplace_back(one.source->windows(), shuffle_seed + sources_.size() * kSeedsApart);
    sources_.push_back(one.source);
  }
  recent_.push_back(blend_.Begin());
}

// The first that is kept is the earliest of all, the others are the latest.
void Batcher::Remember(const BlendState& state) const {
  if (std::find(recent_.begin(), recent_.end(), state) != recent_.end()) return;
  recent_.push_back(state);
  if (recent_.size() > kRecentStates) recent_.erase(recent_.begin() + 1);
}

BlendState Batcher::StateBefore(int64_t step) const {
  const int64_t sample = step * layout_.GlobalBatch();
  BlendState nearest = recent_.front();
  for (const BlendState& state : recent_)
    if (state.sample <= sample && state.sample > nearest.sample) nearest = state;
  blend_.Advance(nearest, sample);
  Remember(nearest);
  return nearest;
}

void Batcher::GoOnFrom(const BlendState& state) {
  MR_REQUIRE(ErrorCode::kCheckpoint, blend_.IsPossible(state),
             "the checkpoint's counters of data.sources are none that these weights lead to");
  Remember(state);
}

template <class F>
void Batcher::ForEachRow(int64_t step, int64_t rank, F&& use) const {
  MR_CHECK(rank >= 0 && rank < layout_.world, "data rank {} of {}", rank, layout_.world);
  BlendState state = StateBefore(step);
  int64_t row = 0;
  // All samples of the step, in their order (StepLayout::Sample).
  for (int64_t m = 0; m < layout_.accumulate; ++m)
    for (int64_t r = 0; r < layout_.world; ++r)
      for (int64_t b = 0; b < layout_.micro_batch; ++b) {
        const auto from = static_cast<size_t>(blend_.Draw(state));
        if (r != rank) continue;
        use(*sources_[from], orders_[from].Window(state.taken[from] - 1), row++);
      }
  Remember(state);
}

std::vector<int32_t> Batcher::Step(int64_t step, int64_t rank) const {
  const int64_t row_tokens = sources_.front()->seq_len() + 1;
  std::vector<int32_t> tokens(
      static_cast<size_t>(layout_.accumulate * layout_.micro_batch * row_tokens));
  ForEachRow(step, rank, [&](const TokenSource& source, int64_t window, int64_t row) {
    source.Read(window, tokens.data() + row * row_tokens);
  });
  return tokens;
}

std::vector<uint8_t> Batcher::StepMarks(int64_t step, int64_t rank) const {
  const int64_t row_tokens = sources_.front()->seq_len() + 1;
  std::vector<uint8_t> marks(
      static_cast<size_t>(layout_.accumulate * layout_.micro_batch * row_tokens));
  ForEachRow(step, rank, [&](const TokenSource& source, int64_t window, int64_t row) {
    source.ReadMarks(window, marks.data() + row * row_tokens);
  });
  return marks;
}

int64_t Batcher::valid_tokens() const {
  return layout_.GlobalBatch() * sources_.front()->seq_len();
}

std::vector<int32_t> EvalTokens(const TokenSource& source, int64_t index, int64_t rank,
                                const StepLayout& layout) {
  const int64_t row_tokens = source.seq_len() + 1;
  std::vector<int32_t> tokens(static_cast<size_t>(layout.micro_batch * row_tokens));
  for (int64_t b = 0; b < layout.micro_batch; ++b)
    source.Read(EvalWindow(source, index, rank, b, layout), tokens.data() + b * row_tokens);
  return tokens;
}

std::vector<uint8_t> EvalMarks(const TokenSource& source, int64_t index, int64_t rank,
                               const StepLayout& layout) {
  const int64_t row_tokens = source.seq_len() + 1;
  std::vector<uint8_t> marks(static_cast<size_t>(layout.micro_batch * row_tokens));
  for (int64_t b = 0; b < layout.micro_batch; ++b)
    source.ReadMarks(EvalWindow(source, index, rank, b, layout), marks.data() + b * row_tokens);
  return marks;
}

int64_t EvalBatches(const TokenSource& source, int64_t wanted, const StepLayout& layout) {
  return std::clamp<int64_t>(source.windows() / (layout.world * layout.micro_batch), 1,
                             std::max<int64_t>(wanted, 1));
}

}  // namespace millrace
