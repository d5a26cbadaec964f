// Rows of tokens as a plan reads them. Where they are documents end to end (data.document_mask),
// also which document each token is in; there and where a mask chooses (data.loss_mask), which
// targets count.
//
// Documents  One ends with the token data.end_of_document, which is its last; without one it begins
//            where the data's files say. The first of a row begins with the row, whatever was ahead
//            of it. What begins a document is predicted from nothing of its own: as a target it
//            does not count (Megatron-LM's --eod-mask-loss). The end itself does.
// Masks      A target that the files' masks leave out does not count. Nothing else changes: it is
//            read as any other token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/data/tokens/token_source.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/plan/layout/further_weights.h"
#include "runtime/run/data/batcher.h"

namespace millrace {

// What documents and targets follow from.
struct RowMasks {
  bool documents = false;
  std::optional<int32_t> end_of_document = {};  // none: marks say where documents begin
  bool loss = false;                            // marks say which targets do not count
  int64_t further = 0;                          // blocks that predict further (model.mtp.depth)

  bool any() const noexcept { return documents || loss; }
  bool reads_marks() const noexcept { return loss || (documents && !end_of_document); }
};
RowMasks MasksOf(const Config& config);

class TokenRows {
 public:
  // tokens and marks [rows, T+1]; marks are not read unless `masks` does.
  TokenRows(std::vector<int32_t> tokens, std::span<const uint8_t> marks, int64_t seq_len,
            const RowMasks& masks);

  HostInputs inputs() const;                 // views of this
  double weight() const { return weight_; }  // targets that count

 private:
  RowMasks masks_;
  std::vector<int32_t> tokens_, documents_;  // documents: [rows, T]
  std::vector<float> weights_;               // [rows, T]
  std::vector<FurtherWeights> further_;      // of them
  double weight_ = 0;
};

// Of `tokens`, which are those of `data_step` (0-based) and the data rank `rank`.
TokenRows StepRows(const Config& config, const Batcher& batcher, int64_t data_step, int64_t rank,
                   std::vector<int32_t> tokens);
// Of a batch that is held out (EvalTokens).
TokenRows EvalRows(const Config& config, const TokenSource& held_out, int64_t index, int64_t rank,
                   const StepLayout& layout);

// What the losses of a step are divided by, whose data is that of `data_step`, 0-based: the targets
// that count, of all data ranks, and of each depth that predicts further its own. With masks each
// rank reads the data of the whole step for it.
// weights 0: none counts, so that the step's loss is 0. Error(kData): every token is
// data.end_of_document.
LossTotals TotalsOf(const Config& config, const Batcher& batcher, int64_t data_step);

}  // namespace millrace
