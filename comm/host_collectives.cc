#include "comm/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/operand_checks.h"
#include "comm/rank_order_sum.h"
#include "runtime/base/error.h"
#include "runtime/base/float16.h"

namespace millrace {
namespace {

// Counts one call, and what the transport sends while it lasts.
class Counted {
 public:
  Counted(const ByteExchange& exchange, int64_t& calls, int64_t& bytes)
      : exchange_(exchange), bytes_(bytes), sent_before_(exchange.moved().sent) {
    ++calls;
  }
  ~Counted() { bytes_ += exchange_.moved().sent - sent_before_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  const ByteExchange& exchange_;
  int64_t& bytes_;
  const int64_t sent_before_;
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::unique_ptr<ByteExchange> exchange, const HostCommOptions& options)
      : exchange_(std::move(exchange)),
        rank_(exchange_->rank()),
        world_(exchange_->world_size()),
        checks_(exchange_->label(), rank_, world_),
        chunk_bytes_(options.chunk_bytes),
        sends_(static_cast<size_t>(world_)),
        recvs_(static_cast<size_t>(world_)),
        terms_(static_cast<size_t>(world_)) {
    MR_REQUIRE(ErrorCode::kInvalidArgument, chunk_bytes_ > 0 && chunk_bytes_ % 64 == 0,
               "communicator '{}': chunk_bytes is {}; a positive multiple of 64 is needed",
               exchange_->label(), chunk_bytes_);
  }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_; }

  bool RoundsInGathers() const noexcept override { return true; }

  void AllGather(const TensorView& shard, const TensorView& full, const TensorView& scratch,
                 Stream& stream) override {
    if (RoundsOnTheWay(shard, full)) {
      checks_.RoundingGather(shard, full);
      const int64_t n = shard.numel();
      const DType narrow = full.dtype();
      const TensorView own{full.data + rank_ * n * Bytes(narrow), DenseLayout(narrow, {n})};
      if (narrow == DType::kBF16)
        ConvertToBFloat16(shard.as<float>(), own.as<BFloat16>(), n);
      else
        ConvertToFloat16(shard.as<float>(), own.as<Float16>(), n);
      return AllGather(own, full, scratch, stream);
    }
    constexpr CommOp op = CommOp::kAllGather;
    const bool in_place = checks_.AllGather(shard, full);
    std::byte* const own = full.data + rank_ * shard.bytes();

    const Counted counted(*exchange_, counters_.all_gathers, counters_.gathered_bytes);
    const int64_t bytes = shard.bytes();
    if (bytes == 0) return;
    if (!in_place) std::memcpy(own, shard.data, static_cast<size_t>(bytes));
    if (world_ == 1) return;
    for (int r = 0; r < world_; ++r) {
      sends_[r] = {own, bytes};
      recvs_[r] = {full.data + r * bytes, bytes};
    }
    exchange_->Exchange(op, sends_, recvs_);
  }

  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView& scratch,
                        Stream&) override {
    constexpr CommOp op = CommOp::kReduceScatter;
    checks_.ReduceScatter(full, shard);
    CheckScratch(op, scratch, {RangeOf("full", full), RangeOf("shard", shard)});

    const Counted counted(*exchange_, counters_.reduce_scatters, counters_.reduced_bytes);
    if (shard.bytes() == 0) return;
    if (world_ == 1) {
      std::memcpy(shard.data, full.data, static_cast<size_t>(shard.bytes()));
      return;
    }
    const Slices slices{shard.numel(), full.numel()};
    SumSlices(op, full.dtype(), full.data, slices, shard.data, scratch.data);
  }

  void AllReduceSum(const TensorView& buffer, const TensorView& scratch, Stream&) override {
    constexpr CommOp op = CommOp::kAllReduce;
    checks_.AllReduce(buffer);
    CheckScratch(op, scratch, {RangeOf("buffer", buffer)});

    const int64_t n = buffer.numel();
    const int64_t element = Bytes(buffer.dtype());
    const Counted counted(*exchange_, counters_.all_reduces, counters_.all_reduced_bytes);
    if (n == 0 || world_ == 1) return;
    const Slices slices{(n + world_ - 1) / world_, n};
    // Where it sends no more bytes than two phases would (one or two elements, or two ranks), each
    // rank sums everything itself: one exchange instead of two, and the same bits.
    if (n <= 2 * slices.size) {
      SumAll(op, buffer, scratch.data);
      return;
    }
    SumSlices(op, buffer.dtype(), buffer.data, slices, buffer.data + slices.begin(rank_) * element,
              scratch.data);
    for (int r = 0; r < world_; ++r) {
      sends_[r] = {buffer.data + slices.begin(rank_) * element, slices.count(rank_) * element};
      recvs_[r] = {buffer.data + slices.begin(r) * element, slices.count(r) * element};
    }
    exchange_->Exchange(op, sends_, recvs_);
  }

  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream&) override {
    checks_.AllToAll(sent, received, live);
    const Counted counted(*exchange_, counters_.all_to_alls, counters_.exchanged_bytes);
    const int64_t bytes = sent.bytes() / world_;
    if (bytes == 0) return;
    for (int r = 0; r < world_; ++r) {
      sends_[r] = {sent.data + r * bytes, bytes};
      recvs_[r] = {received.data + r * bytes, bytes};
    }
    std::memcpy(recvs_[rank_].data, sends_[rank_].data, static_cast<size_t>(bytes));
    if (world_ > 1) exchange_->Exchange(CommOp::kAllToAll, sends_, recvs_);
  }

  std::vector<std::string> HostAllGather(const std::string& payload) override {
    std::vector<std::string> out(static_cast<size_t>(world_));
    out[rank_] = payload;
    if (world_ == 1) return out;
    const int64_t own_size = static_cast<int64_t>(payload.size());
    std::vector<int64_t> sizes(static_cast<size_t>(world_));
    for (int r = 0; r < world_; ++r) {
      sends_[r] = {reinterpret_cast<const std::byte*>(&own_size), sizeof(own_size)};
      recvs_[r] = {reinterpret_cast<std::byte*>(&sizes[r]), sizeof(int64_t)};
    }
    exchange_->Exchange(CommOp::kHostAllGather, sends_, recvs_);
    for (int r = 0; r < world_; ++r) {
      if (r != rank_) out[r].resize(static_cast<size_t>(sizes[r]));
      sends_[r] = {reinterpret_cast<const std::byte*>(payload.data()), own_size};
      recvs_[r] = {reinterpret_cast<std::byte*>(out[r].data()), sizes[r]};
    }
    exchange_->Exchange(CommOp::kHostAllGather, sends_, recvs_);
    return out;
  }

  std::string HostBroadcast(const std::string& payload, int root) override {
    checks_.Root(root);
    if (world_ == 1) return payload;
    int64_t size = static_cast<int64_t>(payload.size());
    FromRoot(root, reinterpret_cast<std::byte*>(&size), sizeof(size));
    std::string out = payload;
    out.resize(static_cast<size_t>(size));
    FromRoot(root, reinterpret_cast<std::byte*>(out.data()), size);
    return out;
  }

  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) override {
    checks_.HostAllToAll(sent, received);
    const SendPiece& own = sent[static_cast<size_t>(rank_)];
    if (own.bytes > 0)
      std::memcpy(received[static_cast<size_t>(rank_)].data, own.data,
                  static_cast<size_t>(own.bytes));
    if (world_ > 1) exchange_->Exchange(CommOp::kHostAllToAll, sent, received);
  }

  void Barrier() override {
    if (world_ == 1) return;
    std::vector<std::byte> tokens(static_cast<size_t>(world_));
    for (int r = 0; r < world_; ++r) {
      sends_[r] = {&tokens[rank_], 1};
      recvs_[r] = {&tokens[r], 1};
    }
    exchange_->Exchange(CommOp::kBarrier, sends_, recvs_);
  }

  const CommCounters& counters() const noexcept override { return counters_; }
  void Abort(const std::string& reason) noexcept override { exchange_->Abort(reason); }
  void CheckHealth() const override { exchange_->CheckHealth(); }

 private:
  // [0, total) cut into one slice per rank, in elements; the last ones may be shorter or empty.
  struct Slices {
    int64_t size, total;
    int64_t begin(int r) const { return std::min(r * size, total); }
    int64_t count(int r) const { return std::min(size, total - begin(r)); }
  };

  // out[i] = sum over ranks of their source[slices.begin(rank) + i], for i in this rank's slice.
  // `out` is disjoint from source, or is that slice of it: a chunk of it is written only when its
  // sum is complete, and no peer reads it.
  void SumSlices(CommOp op, DType dtype, const std::byte* source, const Slices& slices,
                 std::byte* out, std::byte* scratch) {
    const int64_t element = Bytes(dtype);
    const int64_t chunk = chunk_bytes_ / element;
    const auto length = [&](int r, int64_t begin) {
      return std::clamp<int64_t>(slices.count(r) - begin, 0, chunk);
    };
    for (int64_t begin = 0; begin < slices.size; begin += chunk) {
      const int64_t own = length(rank_, begin);
      for (int r = 0; r < world_; ++r) {
        sends_[r] = {source + (slices.begin(r) + begin) * element, length(r, begin) * element};
        recvs_[r] = {scratch + r * chunk_bytes_, own * element};
        terms_[r] = r == rank_ ? sends_[r].data : recvs_[r].data;
      }
      exchange_->Exchange(op, sends_, recvs_);
      RankOrderSum(dtype, terms_, out + begin * element, own);
    }
  }

  // As SumSlices, but each rank receives and sums the whole buffer.
  void SumAll(CommOp op, const TensorView& buffer, std::byte* scratch) {
    const int64_t element = Bytes(buffer.dtype());
    const int64_t chunk = chunk_bytes_ / element;
    for (int64_t begin = 0; begin < buffer.numel(); begin += chunk) {
      const int64_t count = std::min(chunk, buffer.numel() - begin);
      std::byte* const own = buffer.data + begin * element;
      for (int r = 0; r < world_; ++r) {
        sends_[r] = {own, count * element};
        recvs_[r] = {scratch + r * chunk_bytes_, count * element};
        terms_[r] = r == rank_ ? own : recvs_[r].data;
      }
      exchange_->Exchange(op, sends_, recvs_);
      RankOrderSum(buffer.dtype(), terms_, own, count);
    }
  }

  void FromRoot(int root, std::byte* data, int64_t bytes) {
    for (int r = 0; r < world_; ++r) {
      sends_[r] = {data, rank_ == root ? bytes : 0};
      recvs_[r] = {data, r == root ? bytes : 0};
    }
    exchange_->Exchange(CommOp::kHostBroadcast, sends_, recvs_);
  }

  void CheckScratch(CommOp op, const TensorView& scratch,
                    std::initializer_list<NamedRange> operands) const {
    const int64_t needed = ScratchBytes(world_, chunk_bytes_);
    if (needed == 0) return;
    const int64_t given = scratch ? scratch.bytes() : 0;
    MR_REQUIRE(ErrorCode::kInvalidArgument, given >= needed,
               "{} on '{}': scratch has {} bytes; {} ranks need {}", Name(op), exchange_->label(),
               given, world_, needed);
    MR_REQUIRE(ErrorCode::kInvalidArgument,
               reinterpret_cast<uintptr_t>(scratch.data) % sizeof(double) == 0,
               "{} on '{}': scratch at {} is not aligned to {} bytes", Name(op), exchange_->label(),
               static_cast<const void*>(scratch.data), sizeof(double));
    for (const NamedRange& operand : operands)
      checks_.Disjoint(op, {"scratch", scratch.data, needed}, operand);
  }

  const std::unique_ptr<ByteExchange> exchange_;
  const int rank_;
  const int world_;
  const OperandChecks checks_;
  const int64_t chunk_bytes_;
  CommCounters counters_;
  // Filled anew by each call; kept so that a step allocates nothing.
  std::vector<SendPiece> sends_;
  std::vector<RecvPiece> recvs_;
  std::vector<const std::byte*> terms_;
};

}  // namespace

std::unique_ptr<Communicator> MakeHostCommunicator(std::unique_ptr<ByteExchange> exchange,
                                                   const HostCommOptions& options) {
  return std::make_unique<HostCommunicator>(std::move(exchange), options);
}

}  // namespace millrace
