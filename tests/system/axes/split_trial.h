// Trials of models that are split over the tensor, context and expert axes, beside the same
// model whole.
// Tolerances are those of tolerance_test.cc, whose derivation holds: sums in another order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/system/options.h"

namespace millrace::test {

constexpr int64_t kGlobalBatch = 12;  // sequences of a step

struct SplitShape {
  int64_t replicate = 1, shard = 1, context = 1, tensor = 1, accumulate = 1, expert = 1;
  int world() const { return static_cast<int>(replicate * shard * context * tensor * expert); }
};

// Six steps of MakeTensor(of)'s model, whatever the shape, with sequences of `seq_len`.
Trial SplitTrial(ModelConfig::Family family, const SplitShape& shape, int64_t of, int64_t seq_len);

// REQUIREs the losses and norms of two runs to be equal but for the order of sums.
void RequireClose(const Outcome& a, const Outcome& b);

// CHECKs that the shape's loss of an evaluation, and its logits of `row`, are those of the whole
// model, and REQUIREs that all its ranks have the same logits.
using TrialOfShape = std::function<Trial(const SplitShape&)>;
void CheckEvaluation(const TrialOfShape& trial_of, const SplitShape& shape, int64_t row);

// REQUIREs that what each of the shapes saves after two steps loads at all of them, value by value.
// Trials that load may have another precision than those that save.
void RequireCheckpointsLoad(const TrialOfShape& saves, const TrialOfShape& loads,
                            const std::vector<SplitShape>& shapes);

// The first problem that a valid configuration has after `change`, or "".
std::string RefusalOf(Trial trial, const std::function<void(Config&)>& change);

}  // namespace millrace::test
