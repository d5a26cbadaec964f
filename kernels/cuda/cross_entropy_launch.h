// The border between cross_entropy.cc and cross_entropy.cu.
#pragma once

#include "kernels/cuda/views.h"

namespace millrace::cuda {

struct CrossEntropyArgs {
  Rows logits;
  TokenRows targets;
  double* row_loss = nullptr;  // [rows], scratch
  double* loss_sum = nullptr;
  double loss_weight = 1;
  int64_t row_begin = 0, rows = 0;
  int vocab = 0, padded = 0;
  bool gradient = false, add_loss = false;
};
// Zero rows only write the loss.
void LaunchCrossEntropy(const CrossEntropyArgs& args, const Launch& launch);

}  // namespace millrace::cuda
