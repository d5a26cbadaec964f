// The border between embed.cc and embed.cu.
#pragma once

#include "kernels/cuda/divide.h"
#include "kernels/cuda/views.h"

namespace millrace::cuda {

struct EmbedArgs {
  TokenRows tokens;
  const int32_t* documents = nullptr;  // [B, T]; nullptr: a sequence is one
  Rows table, positions, out;
  uint32_t first = 0;  // row of the tokens, b*T + t, that out begins with
  uint32_t packs = 0;  // of all rows of out
  Divisor row_packs, length;
  uint32_t start[2] = {0, 0};  // the position that row b of the tokens begins with: start[b % 2]
  int columns = 0;
};
void LaunchEmbed(const EmbedArgs& args, Elements elements, const Launch& launch);

struct TakeInputArgs {
  TokenRows x;
  int32_t* out = nullptr;  // [B, T]
};
void LaunchTakeInput(const TakeInputArgs& args, const Launch& launch);

struct SelectRowArgs {
  const std::byte* x = nullptr;
  std::byte* out = nullptr;
  int64_t row_stride = 0, x_stride = 0, out_stride = 0;  // elements
  int64_t columns = 0;
  int bytes = 0;  // of an element: 2 or 4
  const StepScalars* scalars = nullptr;
};
void LaunchSelectRow(const SelectRowArgs& args, const Launch& launch);

}  // namespace millrace::cuda
