// The border between cross_entropy.cc and cross_entropy.cu.
#pragma once

#include "kernels/cuda/views.h"
#include "kernels/ops/loss_ops.h"

namespace millrace::cuda {

struct CrossEntropyArgs {
  Rows logits;
  TokenRows targets;
  ValueRows weights, old_logprobs, advantages, reference_logprobs;
  int64_t values_parity_stride = 0;  // of these four
  double* row_loss = nullptr;        // [rows]: an operand, or scratch
  float* row_tally = nullptr;        // [PolicyTally::kCount, rows], scratch; nullptr: no tally
  double* loss_sum = nullptr;
  unsigned* ticket = nullptr;  // loss_sum's own
  float* tally = nullptr;
  double loss_weight = 1;
  PolicyLoss policy;
  int64_t row_begin = 0, rows = 0;
  int vocab = 0, padded = 0;
  bool gradient = false, add_loss = false, add_tally = false;
};
// Zero rows only write the loss.
void LaunchCrossEntropy(const CrossEntropyArgs& args, const Launch& launch);

// Log-probabilities of tokens that are chosen: minus the loss of a row with this target, rounded.
struct LogprobArgs {
  // ids [rows, most], of which those below 0 are left out; the same of logprobs.
  struct Tokens {
    const int32_t* ids = nullptr;
    float* logprobs = nullptr;
    int most = 0;
  };
  Rows logits;
  Tokens tokens[2];  // drawn, and likeliest
  int rows = 0, vocab = 0, padded = 0;
  bool complete = false;  // the logits, when the kernel before calls LetNextBegin
};
void LaunchLogprobs(const LogprobArgs& args, Launch launch);

}  // namespace millrace::cuda
