// The border between rope.cc and rope.cu.
#pragma once

#include "kernels/cuda/divide.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/attention_ops.h"

namespace millrace::cuda {

struct RopeTableArgs {
  float* table = nullptr;  // [length, half, 2]
  int64_t length = 0, half = 0;
  int64_t chunk = 0, start[2] = {0, 0};  // rows from `chunk` on have the positions from start[1] on
  RopeTableAttrs attrs;
};
void LaunchRopeTable(const RopeTableArgs& args, const Launch& launch);

struct RopeArgs {
  Rows x;                        // stride unused; wide: every half of every head starts at 16 bytes
  const float* table = nullptr;  // [>= T, half, 2], 16-byte aligned when x.wide
  const int32_t* documents = nullptr;  // [B, T]; nullptr: a sequence is one
  const int32_t* at = nullptr;         // [B, T] positions; nullptr: as sequences and documents say
  int64_t batch_stride = 0, position_stride = 0, head_stride = 0;
  uint32_t packs = 0;        // in all: b, t, h, pack of a half
  Divisor length, per_head;  // T; packs of a half
  Divisor per_position;      // heads * packs of a half
  int half = 0;
  float sign = 1;  // of the angle
};
void LaunchRope(const RopeArgs& args, const Launch& launch);

}  // namespace millrace::cuda
