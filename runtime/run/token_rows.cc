#include "runtime/run/token_rows.h"

#include <utility>

#include "runtime/base/error.h"

namespace millrace {

TokenRows::TokenRows(std::vector<int32_t> tokens, int64_t seq_len,
                     std::optional<int32_t> end_of_document)
    : masked_(end_of_document.has_value()), tokens_(std::move(tokens)) {
  const auto row = static_cast<size_t>(seq_len + 1), rows = tokens_.size() / row;
  weight_ = static_cast<double>(static_cast<int64_t>(rows) * seq_len);
  if (!masked_) return;
  weight_ = 0;
  for (size_t r = 0; r < rows; ++r) {
    int32_t begin = 0;
    for (int32_t t = 0; t < seq_len; ++t) {
      const bool ends = tokens_[r * row + static_cast<size_t>(t)] == *end_of_document;
      documents_.push_back(begin);
      weights_.push_back(ends ? 0.0f : 1.0f);
      weight_ += ends ? 0 : 1;
      if (ends) begin = t + 1;
    }
  }
}

HostInputs TokenRows::inputs() const {
  std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(tokens_))}};
  if (masked_) {
    inputs.push_back({"documents", std::as_bytes(std::span(documents_))});
    inputs.push_back({"weights", std::as_bytes(std::span(weights_))});
  }
  return HostInputs(std::move(inputs));
}

std::optional<int32_t> EndOfDocument(const Config& config) {
  if (!config.data.document_mask || !config.data.end_of_document) return {};
  return static_cast<int32_t>(*config.data.end_of_document);
}

int64_t CountTargets(std::span<const int32_t> tokens, int64_t seq_len, int32_t end_of_document) {
  int64_t count = 0;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (static_cast<int64_t>(i) % (seq_len + 1) != seq_len) count += tokens[i] != end_of_document;
  return count;
}

LossTotals TotalsOf(const Config& config, const Batcher& batcher, int64_t data_step) {
  const std::optional<int32_t> end = EndOfDocument(config);
  if (!end) return batcher.valid_tokens();
  int64_t count = 0;
  for (int64_t rank = 0; rank < batcher.layout().world; ++rank)
    count += CountTargets(batcher.Step(data_step, rank), config.model.seq_len, *end);
  MR_REQUIRE(ErrorCode::kData, count > 0,
             "every token of step {}'s data is data.end_of_document, {}; none is left to predict",
             data_step + 1, *end);
  return {batcher.valid_tokens(), static_cast<double>(count)};
}

}  // namespace millrace
