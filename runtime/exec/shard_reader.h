// This rank's shards, read in pieces: the next piece is copied from the device while the caller
// looks at one. A whole shard is memory that is touched for the first time, which at the end of a
// large model's run costs more than what is done with the values.
// Threads  The engine's; it outlives the reader.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

class Engine;

class ShardReader {
 public:
  explicit ShardReader(Engine& engine);

  // Calls f with the elements `range` of the shard of a state slot, f32, in order, some at a time;
  // they are there while f runs. What is kept as bf16 is widened. An empty range has none.
  // Error(kInternal): a range that is not within [0, shard_numel).
  void Read(std::string_view slot, FlatId flat, const Range& range,
            const std::function<void(std::span<const float>)>& f);

 private:
  struct Piece {
    std::unique_ptr<HostBuffer> buffer;
    std::unique_ptr<Event> arrived;
  };
  Engine& engine_;
  std::array<Piece, 2> pieces_;
  std::vector<float> widened_;
};

}  // namespace millrace
