// The border between embed_grad.cc and the .cu files of the sort and of the sums.
#pragma once

#include "kernels/cuda/views.h"

namespace millrace::cuda {

// Stable: order[i] is the row of the i-th smallest token, keys[i] that token; equal tokens in row order.
struct TokenSortArgs {
  TokenRows tokens;
  int64_t rows = 0, vocab = 0;
  int passes = 0, digit_bits = 0;
  int32_t* keys[2] = {};      // [rows]; the result is in keys[(passes - 1) % 2]
  int32_t* order[2] = {};     // [rows]; as keys
  int32_t* counts = nullptr;  // [2^digit_bits, blocks of kSortTile rows]
  int32_t* begins =
      nullptr;  // [vocab + 1]: rows of token v are [begins[v], begins[v + 1]) of the sorted ones
};
void LaunchTokenSort(const TokenSortArgs& args, const Launch& launch);

struct TableGradArgs {
  Rows d_out, d_table;
  const int32_t* keys = nullptr;
  const int32_t* order = nullptr;
  const int32_t* begins = nullptr;
  float* partials = nullptr;  // [tiles, 2, columns]
  int64_t rows = 0, vocab = 0;
  int columns = 0;
  bool accumulate = false;
};
void LaunchTableGrad(const TableGradArgs& args, const Launch& launch);

struct PositionsGradArgs {
  Rows d_out, d_positions;
  int64_t batch = 0, length = 0;
  int columns = 0;
  bool accumulate = false;
};
void LaunchPositionsGrad(const PositionsGradArgs& args, const Launch& launch);

}  // namespace millrace::cuda
