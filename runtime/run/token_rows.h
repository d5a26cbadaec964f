// Rows of tokens as a plan reads them. Where they are documents end to end (data.document_mask),
// also which document each token is in, and which targets count.
//
// Documents  One ends with the token `end_of_document`, which is its last; the first of a row
//            begins with the row, whatever was ahead of it. What follows the end is predicted from
//            nothing of its own document: that target does not count (Megatron-LM's
//            --eod-mask-loss). The end itself does, as a target.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/run/batcher.h"

namespace millrace {

class TokenRows {
 public:
  // tokens [rows, T+1]. No end_of_document: each row is one document.
  TokenRows(std::vector<int32_t> tokens, int64_t seq_len, std::optional<int32_t> end_of_document);

  HostInputs inputs() const;                 // views of this
  double weight() const { return weight_; }  // targets that count

 private:
  bool masked_;
  std::vector<int32_t> tokens_, documents_;  // documents: [rows, T]
  std::vector<float> weights_;               // [rows, T]
  double weight_ = 0;
};

// data.end_of_document where documents are masked.
std::optional<int32_t> EndOfDocument(const Config& config);

// Targets of `tokens` [rows, T+1] that count.
int64_t CountTargets(std::span<const int32_t> tokens, int64_t seq_len, int32_t end_of_document);

// What the losses of a step are divided by, whose data is that of `data_step`, 0-based: the targets
// that count, of all data ranks. With documents each rank reads the tokens of the whole step for
// it. Error(kData): none counts.
LossTotals TotalsOf(const Config& config, const Batcher& batcher, int64_t data_step);

}  // namespace millrace
