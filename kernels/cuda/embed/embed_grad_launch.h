// The border between embed_grad.cc and the .cu files of the sort and of the sums.
#pragma once

#include "kernels/cuda/divide.h"
#include "kernels/cuda/views.h"

namespace millrace::cuda {

// Stable: order[i] is the row of the i-th smallest token, keys[i] that token;
// equal tokens in row order.
struct TokenSortArgs {
  TokenRows tokens;
  Divisor length;                      // T
  int first = 0;                       // row of the tokens, b*T + t, that row 0 is
  int rows = 0, tile = 0, blocks = 0;  // of `tile` rows; of one block, keys are ranked
  int passes = 0, digit_bits = 0;
  int32_t* keys[2] = {};      // [rows]; the result is in keys[(passes - 1) % 2]
  int32_t* order[2] = {};     // [rows]; as keys
  int32_t* counts = nullptr;  // [blocks, 2^digit_bits]; of several blocks
};
void LaunchTokenSort(const TokenSortArgs& args, const Launch& launch);

// d_table from sorted rows.
struct TableGradArgs {
  Rows d_table;  // absent: nothing to do
  const int32_t* keys = nullptr;
  const int32_t* order = nullptr;
  float* partials = nullptr;  // [tiles, 2, columns]
  int64_t vocab = 0;
  int tile = 0, tiles = 0;
  bool accumulate = false;
};

struct PositionsGradArgs {
  Rows d_positions;                    // absent: nothing to do
  const int32_t* documents = nullptr;  // [B, T]; nullptr: a sequence is one
  int64_t batch = 0, length = 0;       // of the tokens
  int64_t positions = 0;               // T
  int64_t start[2] = {0, 0};           // as EmbedArgs
  int64_t first = 0;                   // as TokenSortArgs
  bool accumulate = false;
};

struct EmbedGradArgs {
  TableGradArgs table;
  PositionsGradArgs positions;
  Rows d_out;
  int rows = 0, columns = 0;
};
void LaunchEmbedGrad(const EmbedGradArgs& args, const Launch& launch);

}  // namespace millrace::cuda
