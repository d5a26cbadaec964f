// The border between expert_rows.cc and its kernels, expert_slots.cu and expert_rows.cu.
#pragma once

#include "kernels/cuda/divide.h"
#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

struct SlotsArgs {
  const int32_t* ids = nullptr;  // [pairs]
  int32_t *offsets = nullptr, *slots = nullptr, *pair_of = nullptr;
  int32_t* counts = nullptr;  // scratch [tiles, experts]
  int pairs = 0, experts = 0, tiles = 0;
};
void LaunchExpertSlots(const SlotsArgs& args, const Launch& launch);

// Dispatch: rows x to slots. Combine: slots x to rows.
struct ExpertRowsArgs {
  Rows x, out;
  const int32_t* places = nullptr;  // pairs [S], or slots [R,K]
  const int32_t* live = nullptr;    // of slots; dispatch only, nullptr: all
  const float* weights = nullptr;   // [R,K] or [S], optional
  float* out_weights = nullptr;     // likewise [S] or [R,K]
  uint32_t packs = 0;               // of all rows of out
  Divisor row_packs, top_k;
  int columns = 0;
};
void LaunchDispatch(const ExpertRowsArgs& args, Elements elements, const Launch& launch);
void LaunchCombine(const ExpertRowsArgs& args, Elements elements, const Launch& launch);

}  // namespace millrace::cuda
