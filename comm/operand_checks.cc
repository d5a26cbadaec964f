#include "comm/operand_checks.h"

#include "comm/rank_order_sum.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

bool Overlap(const NamedRange& a, const NamedRange& b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

}  // namespace

bool OperandChecks::AllGather(const TensorView& shard, const TensorView& full) const {
  constexpr CommOp op = CommOp::kAllGather;
  Contiguous(op, "shard", shard);
  Contiguous(op, "full", full);
  ShardOfFull(op, shard, full);
  const bool in_place = shard.data == full.data + rank_ * shard.bytes();
  if (!in_place) Disjoint(op, RangeOf("shard", shard), RangeOf("full", full));
  return in_place;
}

void OperandChecks::RoundingGather(const TensorView& shard, const TensorView& full) const {
  constexpr CommOp op = CommOp::kAllGather;
  Contiguous(op, "shard", shard);
  Contiguous(op, "full", full);
  Sizes(op, shard, full);
  Disjoint(op, RangeOf("shard", shard), RangeOf("full", full));
}

void OperandChecks::ReduceScatter(const TensorView& full, const TensorView& shard) const {
  constexpr CommOp op = CommOp::kReduceScatter;
  Contiguous(op, "full", full);
  Contiguous(op, "shard", shard);
  ShardOfFull(op, shard, full);
  Summable(op, full.dtype());
  Disjoint(op, RangeOf("shard", shard), RangeOf("full", full));
}

void OperandChecks::AllReduce(const TensorView& buffer) const {
  Contiguous(CommOp::kAllReduce, "buffer", buffer);
  Summable(CommOp::kAllReduce, buffer.dtype());
}

void OperandChecks::AllToAll(const TensorView& sent, const TensorView& received,
                             const LiveRows& live) const {
  constexpr CommOp op = CommOp::kAllToAll;
  Contiguous(op, "sent", sent);
  Contiguous(op, "received", received);
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             sent.dtype() == received.dtype() && sent.numel() == received.numel(),
             "{} on '{}': sent is {}, received {}; one dtype and size are needed", Name(op), label_,
             ToString(sent.layout), ToString(received.layout));
  MR_REQUIRE(ErrorCode::kInvalidArgument, sent.numel() % world_size_ == 0,
             "{} on '{}': sent has {} elements, which {} ranks do not divide", Name(op), label_,
             sent.numel(), world_size_);
  Disjoint(op, RangeOf("sent", sent), RangeOf("received", received));
  if (!live.counts) return;
  Contiguous(op, "counts", live.counts);
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             live.counts.dtype() == DType::kI32 && live.counts.numel() % world_size_ == 0 &&
                 live.row_numel > 0 && sent.numel() / world_size_ % live.row_numel == 0,
             "{} on '{}': counts are {}, of rows of {} elements in pieces of {}; i32, as many for "
             "each of {} ranks, of whole rows are needed",
             Name(op), label_, ToString(live.counts.layout), live.row_numel,
             sent.numel() / world_size_, world_size_);
}

void OperandChecks::Root(int root) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, root >= 0 && root < world_size_,
             "host_broadcast on '{}': root {} is not a rank of a group of {}", label_, root,
             world_size_);
}

void OperandChecks::HostAllToAll(std::span<const SendPiece> sent,
                                 std::span<const RecvPiece> received) const {
  const auto world = static_cast<size_t>(world_size_);
  MR_REQUIRE(ErrorCode::kInvalidArgument, sent.size() == world && received.size() == world,
             "host_all_to_all on '{}': {} pieces to send and {} to receive; {} ranks need as many",
             label_, sent.size(), received.size(), world_size_);
  const auto own = static_cast<size_t>(rank_);
  MR_REQUIRE(ErrorCode::kInvalidArgument, sent[own].bytes == received[own].bytes,
             "host_all_to_all on '{}': rank {} sends {} bytes to itself and expects {}; the same "
             "number is needed",
             label_, rank_, sent[own].bytes, received[own].bytes);
}

void OperandChecks::Contiguous(CommOp op, const char* name, const TensorView& view) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, view.layout.contiguous(),
             "{} on '{}': {} is {}; a contiguous view is needed", Name(op), label_, name,
             ToString(view.layout));
  MR_REQUIRE(ErrorCode::kInvalidArgument, view.data != nullptr || view.numel() == 0,
             "{} on '{}': {} is {} without an address", Name(op), label_, name,
             ToString(view.layout));
}

void OperandChecks::ShardOfFull(CommOp op, const TensorView& shard, const TensorView& full) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, shard.dtype() == full.dtype(),
             "{} on '{}': shard is {} but full is {}; one dtype is needed", Name(op), label_,
             Name(shard.dtype()), Name(full.dtype()));
  Sizes(op, shard, full);
}

void OperandChecks::Sizes(CommOp op, const TensorView& shard, const TensorView& full) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, full.numel() == shard.numel() * world_size_,
             "{} on '{}': full has {} elements; {} ranks times the shard's {} make {}", Name(op),
             label_, full.numel(), world_size_, shard.numel(), shard.numel() * world_size_);
}

void OperandChecks::Summable(CommOp op, DType dtype) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, CanSum(dtype),
             "{} on '{}': cannot sum {}; f32, bf16, f16 or f64 is needed", Name(op), label_,
             Name(dtype));
}

void OperandChecks::Disjoint(CommOp op, const NamedRange& a, const NamedRange& b) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, !Overlap(a, b),
             "{} on '{}', rank {}: {} [{}, +{} bytes) overlaps {} [{}, +{} bytes)", Name(op),
             label_, rank_, a.name, static_cast<const void*>(a.data), a.bytes, b.name,
             static_cast<const void*>(b.data), b.bytes);
}

}  // namespace millrace
