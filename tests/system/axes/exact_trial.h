// Trials on integers, where every sum is exact: a model that is split over an axis has the bits of
// the whole one. What is not linear has exact stand-ins (tests/support/exact_kernels.h); products
// and exchanges are the real ones, so that leaving out, doubling or permuting any one exchange
// shows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/plan/lower/lower.h"
#include "tests/system/run_model.h"

namespace millrace::test {

struct ExactShape {
  int replicate = 1, shard = 1, context = 1, tensor = 1, expert = 1;
  int world() const { return replicate * shard * context * tensor * expert; }
};

struct ExactSizes {
  int64_t seq_len, heads, kv_heads;  // GPT-2 has as many key and value heads as heads
};

// Two blocks, two steps of 12 sequences in all.
Trial ExactTrial(ModelConfig::Family family, const ExactShape& shape, int64_t accumulate,
                 const ExactSizes& sizes);

// The forward of the trial's training step.
SemanticGraph ForwardOf(const Trial& trial);

// Bits of losses, norms, weights and gradients (the moments) after two steps, of the program that
// `change` leaves.
std::string ExactBits(const Trial& trial, const std::function<void(Program&)>& change = {});

// CHECKs that each exchange of the trial's program, left out, doubled or permuted, changes the
// bits. REQUIREs that there are as many as stated, so that none is overlooked.
void CheckEveryExchangeShows(const Trial& trial, size_t forward, size_t backward);

}  // namespace millrace::test
