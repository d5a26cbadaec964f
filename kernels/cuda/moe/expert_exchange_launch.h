// The border between expert_exchange.cc and its kernels.
#pragma once

#include <cstdint>

#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

struct PiecesArgs {
  const int32_t *offsets = nullptr, *pairs = nullptr;
  int32_t *piece_pairs = nullptr, *piece_slots = nullptr, *counts = nullptr;
  float* dropped = nullptr;    // null: pieces have room for all rows
  bool accumulate = false;     // dropped
  int ranks = 1, experts = 1;  // of a rank
  int rows = 0;                // of a piece
};
void LaunchExpertPieces(const PiecesArgs& args, const Launch& launch);

struct ReceivedArgs {
  const int32_t* counts = nullptr;
  int32_t *offsets = nullptr, *slots = nullptr, *rows_of = nullptr;
  int ranks = 1, experts = 1;  // of a rank, at most 1024
  int rows = 0;                // of a piece
};
void LaunchReceivedSlots(const ReceivedArgs& args, const Launch& launch);

}  // namespace millrace::cuda
