// What every implementation checks about the operands of a collective before anything moves or is
// counted, so that wrong calls fail with the same words on every transport.
//
// Errors   Error(kInvalidArgument) naming the op, the communicator's label, both values, and what
//          is needed.
#pragma once

#include <span>
#include <string>

#include "comm/byte_exchange.h"
#include "comm/communicator.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// A range of bytes under the name that errors give it.
struct NamedRange {
  const char* name;
  const std::byte* data;
  int64_t bytes;
};
inline NamedRange RangeOf(const char* name, const TensorView& view) {
  return {name, view.data, view.bytes()};
}

// Whether a gather is one of f32 shards into a full buffer of bf16 or f16.
inline bool RoundsOnTheWay(const TensorView& shard, const TensorView& full) {
  return shard.dtype() == DType::kF32 && IsFloatOf16Bits(full.dtype());
}

class OperandChecks {
 public:
  OperandChecks(std::string label, int rank, int world_size)
      : label_(std::move(label)), rank_(rank), world_size_(world_size) {}

  const std::string& label() const noexcept { return label_; }

  // Returns whether `shard` is this rank's place in `full`: a gather in place.
  bool AllGather(const TensorView& shard, const TensorView& full) const;
  // The same for a gather that RoundsOnTheWay.
  void RoundingGather(const TensorView& shard, const TensorView& full) const;
  void ReduceScatter(const TensorView& full, const TensorView& shard) const;
  void AllReduce(const TensorView& buffer) const;
  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live) const;
  void Root(int root) const;  // of a host broadcast
  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) const;

  // Two ranges of one call share no byte.
  void Disjoint(CommOp op, const NamedRange& a, const NamedRange& b) const;

 private:
  void Contiguous(CommOp op, const char* name, const TensorView& view) const;
  void ShardOfFull(CommOp op, const TensorView& shard, const TensorView& full) const;
  void Sizes(CommOp op, const TensorView& shard, const TensorView& full) const;
  void Summable(CommOp op, DType dtype) const;

  const std::string label_;
  const int rank_;
  const int world_size_;
};

}  // namespace millrace
