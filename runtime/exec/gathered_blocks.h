// A state slot of all ranks on each rank's device, piece by piece: for who copies a whole model
// without the host. What ranks share is gathered through some MiB of the device's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "runtime/base/device.h"
#include "runtime/base/tensor_view.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

class Engine;

// Lines of elements that follow each other in the parameter, row-major over its logical dims.
struct ParamBlock {
  ParamId param;
  int64_t logical = 0;  // place of the first element
  int64_t stride = 0;   // from there to that of the next line
  TensorView values;    // f32 [lines, n], strided in dim 0
};

class GatheredBlocks {
 public:
  static constexpr int64_t kPieceBytes = int64_t{64} << 20;  // of all ranks together

  // Error(kOutOfMemory). The engine outlives it.
  explicit GatheredBlocks(Engine& engine, int64_t piece_bytes = kPieceBytes);

  // Calls f for blocks that together have every element of the slot, which is f32, of each
  // parameter once. A collective over the world, between steps. What f enqueues on the engine's
  // compute stream finds the values; nothing else may read them.
  void ForEach(std::string_view slot, const std::function<void(const ParamBlock&)>& f);

 private:
  void Gather(const FlatParam& flat, const TensorView& shard,
              const std::function<void(const ParamBlock&)>& f);

  Engine& engine_;
  int64_t most_ = 0;                        // elements of a rank's piece
  std::unique_ptr<DeviceBuffer> gathered_;  // of all ranks in turn; null: nothing is shared
};

}  // namespace millrace
