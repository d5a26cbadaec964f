#include "runtime/run/data/token_rows.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// A row's tokens and marks [T+1], and what follows from them.
struct Row {
  const int32_t* tokens;
  const uint8_t* marks;  // null where masks.reads_marks() is not so
  const RowMasks& masks;

  bool BeginsDocument(int64_t t) const {  // t >= 1
    if (!masks.documents) return false;
    return masks.end_of_document ? tokens[t - 1] == *masks.end_of_document
                                 : (marks[t] & kBeginsDocument) != 0;
  }
  // Whether token t + 1 counts, the target of position t.
  bool Counts(int64_t t) const {
    return !BeginsDocument(t + 1) && !(masks.loss && (marks[t + 1] & kNoTarget) != 0);
  }
};

Row RowAt(std::span<const int32_t> tokens, std::span<const uint8_t> marks, size_t first,
          const RowMasks& masks) {
  return {tokens.data() + first, masks.reads_marks() ? marks.data() + first : nullptr, masks};
}

// Adds what the data rank `rank` reads in a step: to counts[k] the targets that count among those k
// further on than the next token. A sequence's first k have none that is so far ahead of them.
void CountTargets(const Batcher& batcher, int64_t data_step, int64_t rank, int64_t seq_len,
                  const RowMasks& masks, std::vector<int64_t>& counts) {
  const std::vector<int32_t> tokens = batcher.Step(data_step, rank);
  const std::vector<uint8_t> marks =
      masks.reads_marks() ? batcher.StepMarks(data_step, rank) : std::vector<uint8_t>();
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(seq_len + 1)) {
    const Row row = RowAt(tokens, marks, first, masks);
    for (int64_t t = 0; t < seq_len; ++t)
      for (int64_t k = 0; row.Counts(t) && k <= std::min(t, masks.further); ++k)
        ++counts[static_cast<size_t>(k)];
  }
}

}  // namespace

RowMasks MasksOf(const Config& config) {
  RowMasks masks{.documents = config.data.MasksDocuments(),
                 .loss = config.data.loss_mask.value_or(false),
                 .further = config.model.mtp.depth};
  if (masks.documents && config.data.end_of_document)
    masks.end_of_document = static_cast<int32_t>(*config.data.end_of_document);
  return masks;
}

TokenRows::TokenRows(std::vector<int32_t> tokens, std::span<const uint8_t> marks, int64_t seq_len,
                     const RowMasks& masks)
    : masks_(masks), tokens_(std::move(tokens)) {
  const auto row_tokens = static_cast<size_t>(seq_len + 1), rows = tokens_.size() / row_tokens;
  weight_ = static_cast<double>(static_cast<int64_t>(rows) * seq_len);
  if (!masks_.any()) return;
  MR_CHECK(!masks_.reads_marks() || marks.size() == tokens_.size(), "{} marks of {} tokens",
           marks.size(), tokens_.size());
  weight_ = 0;
  for (size_t r = 0; r < rows; ++r) {
    const Row row = RowAt(tokens_, marks, r * row_tokens, masks_);
    int32_t begin = 0;
    for (int32_t t = 0; t < seq_len; ++t) {
      if (t > 0 && row.BeginsDocument(t)) begin = t;
      const bool counts = row.Counts(t);
      if (masks_.documents) documents_.push_back(begin);
      weights_.push_back(counts ? 1.0f : 0.0f);
      weight_ += counts ? 1 : 0;
    }
  }
  further_ = RolledWeights(weights_, seq_len, masks_.further);
}

HostInputs TokenRows::inputs() const {
  std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(tokens_))}};
  if (masks_.documents) inputs.push_back({"documents", std::as_bytes(std::span(documents_))});
  if (masks_.any()) inputs.push_back({"weights", std::as_bytes(std::span(weights_))});
  for (const FurtherWeights& further : further_)
    inputs.push_back({further.source, std::as_bytes(std::span(further.values))});
  return HostInputs(std::move(inputs));
}

TokenRows StepRows(const Config& config, const Batcher& batcher, int64_t data_step, int64_t rank,
                   std::vector<int32_t> tokens) {
  const RowMasks masks = MasksOf(config);
  std::vector<uint8_t> marks;
  if (masks.reads_marks()) marks = batcher.StepMarks(data_step, rank);
  return TokenRows(std::move(tokens), marks, config.model.seq_len, masks);
}

TokenRows EvalRows(const Config& config, const TokenSource& held_out, int64_t index, int64_t rank,
                   const StepLayout& layout) {
  const RowMasks masks = MasksOf(config);
  std::vector<uint8_t> marks;
  if (masks.reads_marks()) marks = EvalMarks(held_out, index, rank, layout);
  return TokenRows(EvalTokens(held_out, index, rank, layout), marks, config.model.seq_len, masks);
}

LossTotals TotalsOf(const Config& config, const Batcher& batcher, int64_t data_step) {
  const RowMasks masks = MasksOf(config);
  if (!masks.any()) return batcher.valid_tokens();
  std::vector<int64_t> counts(static_cast<size_t>(1 + masks.further));
  for (int64_t rank = 0; rank < batcher.layout().world; ++rank)
    CountTargets(batcher, data_step, rank, config.model.seq_len, masks, counts);
  // A mask may well leave out all of a small batch. Ends of documents alone are no data.
  MR_REQUIRE(ErrorCode::kData, counts[0] > 0 || masks.loss,
             "no token of step {}'s data can be predicted: every one begins a document{}",
             data_step + 1,
             masks.end_of_document
                 ? fmt::format(", since all are data.end_of_document, {}", *masks.end_of_document)
                 : "");
  LossTotals totals(batcher.valid_tokens(), static_cast<double>(counts[0]));
  const int64_t sequences = totals.targets / config.model.seq_len;
  for (int64_t k = 1; k <= masks.further; ++k)
    totals.others.push_back({FurtherWeightsName(k), sequences * (config.model.seq_len - k),
                             static_cast<double>(counts[static_cast<size_t>(k)])});
  return totals;
}

}  // namespace millrace
