#include "comm/peer/peer_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "comm/nccl/nccl_connect.h"
#include "comm/operand_checks.h"
#include "comm/peer/peer_exchange.h"
#include "comm/peer/peer_gather.h"
#include "comm/peer/peer_reduce.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/gpu_wait.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

enum class Kind : uint32_t { kGather, kRoundingGather, kReduce, kExchange };
constexpr int kLanes = 3;  // gathers, reductions, exchanges
// What peers map is an allocation of its own: the driver maps whole pages, where
// small allocations share one.
constexpr int64_t kLaneBytes = 2 << 20;
static_assert(kLanes * sizeof(PeerLane) <= kLaneBytes);

// Of what all ranks must agree on in a call; never 0.
uint32_t Signature(Kind kind, DType dtype, int64_t offset, int64_t n) {
  uint64_t mixed = static_cast<uint64_t>(kind) * 31 + static_cast<uint64_t>(dtype);
  for (const int64_t part : {offset, n}) {  // SplitMix64's finaliser
    mixed += static_cast<uint64_t>(part) + 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    mixed ^= mixed >> 31;
  }
  return static_cast<uint32_t>(mixed % ((1u << kSignatureBits) - 1)) + 1;
}

class PeerCommunicatorImpl final : public PeerCommunicator {
 public:
  PeerCommunicatorImpl(std::unique_ptr<Communicator> host,
                       std::function<std::unique_ptr<Communicator>()> other, CudaDevice& device,
                       const std::string& label, const PeerOptions& options, Log& log)
      : host_(std::move(host)),
        make_(std::move(other)),
        device_(device),
        log_(log),
        options_(options),
        checks_(label, host_->rank(), host_->world_size()),
        rank_(host_->rank()),
        world_(host_->world_size()) {
    for (const int blocks : {options.gather_blocks, options.reduce_blocks, options.exchange_blocks})
      MR_REQUIRE(ErrorCode::kConfig, blocks >= 1 && blocks <= kMaxPeerBlocks,
                 "peer memory: {} blocks; 1 to {} are allowed", blocks, kMaxPeerBlocks);
    if (world_ == 1) {
      static_cast<void>(Other());
      return;
    }
    RequireRoom();
    words_ = device.AllocateHost(2 * sizeof(uint32_t), "peer words of " + label);
    for (const int i : {kStop, kStrange}) *HostWord(i) = 0;
    lanes_ = device.Allocate(kLaneBytes, "peer lanes of " + label);
    const auto stream = device.MakeStream(StreamRole::kCompute);
    device.EnqueueFill(lanes_->data(), std::byte{0}, lanes_->bytes(), *stream);
    stream->Sync();
    lane_mapping_ =
        PeerMapping::Make(*host_, device, label, lanes_->data(), lanes_->bytes(), options.gpus);
  }

  ~PeerCommunicatorImpl() override {
    if (world_ == 1) return;
    // Nobody waits for peers that may never come.
    if (aborted_ || std::uncaught_exceptions() > exceptions_at_birth_) *HostWord(kStop) = 1;
    static_cast<void>(WaitForGpu());
    regions_.clear();
    lane_mapping_.reset();
    Meet();
  }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_; }
  bool RoundsInGathers() const noexcept override { return world_ > 1; }

  void AllGather(const TensorView& shard, const TensorView& full, const TensorView& scratch,
                 Stream& stream) override {
    if (world_ == 1) return Other().AllGather(shard, full, scratch, stream);
    if (RoundsOnTheWay(shard, full)) return RoundingGather(shard, full, stream);
    const bool in_place = checks_.AllGather(shard, full);
    if (shard.bytes() > 0) {
      const PeerCall call = Begin(Kind::kGather, full, shard.bytes(), stream);
      const PeerSlots slots = Slots(full, in_place);
      LaunchPeerGather(call, shard.data, slots, shard.bytes(), AsCuda(stream).get());
      CountStores(slots, in_place, shard.bytes());
    }
    ++counters_.all_gathers;
  }

  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView& scratch,
                        Stream& stream) override {
    if (world_ == 1) return Other().ReduceScatterSum(full, shard, scratch, stream);
    checks_.ReduceScatter(full, shard);
    if (shard.bytes() > 0) {
      const PeerCall call = Begin(Kind::kReduce, full, shard.bytes(), stream);
      PeerSlices slices;
      const PeerMapping& region = RegionOf(full);
      for (int r = 0; r < world_; ++r)
        slices.slice[r] = region.At(r, full.data) + rank_ * shard.bytes();
      LaunchPeerReduce(call, slices, shard.data, shard.dtype(), shard.numel(),
                       AsCuda(stream).get());
      // This rank loads its slice from each peer, and each peer loads as much from here.
      counters_.reduced_bytes += (call.world - 1) * shard.bytes();
    }
    ++counters_.reduce_scatters;
  }

  void AllReduceSum(const TensorView& buffer, const TensorView& scratch, Stream& stream) override {
    Communicator& other = Other();
    const CommCounters before = other.counters();
    other.AllReduceSum(buffer, scratch, stream);
    counters_ += other.counters() - before;
  }

  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream& stream) override {
    if (world_ == 1) return Other().AllToAll(sent, received, live, stream);
    checks_.AllToAll(sent, received, live);
    if (sent.bytes() > 0) {
      const int64_t bytes = sent.bytes() / world_;
      const PeerCall call = Begin(Kind::kExchange, received, bytes, stream);
      LaunchPeerExchange(call, Pieces(sent, received, live), AsCuda(stream).get());
      counters_.exchanged_bytes += (world_ - 1) * bytes;
    }
    ++counters_.all_to_alls;
  }

  std::vector<std::string> HostAllGather(const std::string& payload) override {
    return host_->HostAllGather(payload);
  }
  std::string HostBroadcast(const std::string& payload, int root) override {
    return host_->HostBroadcast(payload, root);
  }
  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) override {
    host_->HostAllToAll(sent, received);
  }
  void Barrier() override { host_->Barrier(); }

  const CommCounters& counters() const noexcept override {
    return world_ == 1 ? other_->counters() : counters_;
  }

  void RegisterMemory(std::byte* base, int64_t bytes) override {
    if (world_ == 1) return;
    MR_REQUIRE(ErrorCode::kInvalidArgument, regions_.count(base) == 0,
               "communicator '{}', rank {}: memory at {} is registered already", checks_.label(),
               rank_, static_cast<const void*>(base));
    auto mapping = PeerMapping::Make(*host_, device_, checks_.label(), base, bytes, options_.gpus);
    regions_[base] = std::move(mapping);
  }

  void UnregisterMemory(std::byte* base) noexcept override {
    if (regions_.count(base) == 0) return;
    static_cast<void>(WaitForGpu());
    regions_.erase(base);
    Meet();
  }

  void Connect(const CommUses& uses) override {
    if (world_ == 1) return Other().Connect(uses);
    if (uses.all_reduces)
      Other().Connect({.all_gathers = false,
                       .reduce_scatters = false,
                       .all_reduces = true,
                       .all_to_alls = false});
    const CommCounters before = counters_;
    ExerciseCollectives(*this, device_, NcclOptions{.timeout = options_.timeout},
                        {.all_gathers = uses.all_gathers,
                         .reduce_scatters = uses.reduce_scatters,
                         .all_reduces = false,
                         .all_to_alls = uses.all_to_alls},
                        checks_.label());
    counters_ = before;
  }

  void CheckHealth() const override {
    if (words_) {
      const uint32_t strange = *HostWord(kStrange);
      MR_REQUIRE(ErrorCode::kComm, strange == 0,
                 "communicator '{}', rank {}: rank {} is in another collective, or has its buffer "
                 "elsewhere",
                 checks_.label(), rank_, strange - 1);
      ThrowIfAborted("check");
    }
    if (const Communicator* other = other_seen_) other->CheckHealth();
    host_->CheckHealth();
  }

  void Abort(const std::string& reason) noexcept override {
    if (words_) {
      const std::lock_guard lock(reason_mutex_);
      if (!aborted_) reason_ = reason;
      aborted_ = true;
      *HostWord(kStop) = 1;
    }
    if (Communicator* other = other_seen_) other->Abort(reason);
    host_->Abort(reason);
  }

 private:
  static constexpr int kStop = 0, kStrange = 1;  // of words_

  volatile uint32_t* HostWord(int i) const {
    return reinterpret_cast<uint32_t*>(words_->data()) + i;
  }

  Communicator& Other() {
    if (other_) return *other_;
    other_ = make_();
    other_seen_ = other_.get();
    if (aborted_) {  // which did not see it yet
      const std::lock_guard lock(reason_mutex_);
      other_->Abort(reason_);
    }
    return *other_;
  }

  void RoundingGather(const TensorView& master, const TensorView& full, Stream& stream) {
    checks_.RoundingGather(master, full);
    const int64_t n = master.numel();
    const TensorView own{full.data + rank_ * n * Bytes(full.dtype()),
                         DenseLayout(full.dtype(), {n})};
    if (n > 0) {
      const PeerCall call = Begin(Kind::kRoundingGather, full, own.bytes(), stream);
      const PeerSlots slots = Slots(full, false);
      LaunchPeerRoundingGather(call, master.as<float>(), full.dtype(), slots, n,
                               AsCuda(stream).get());
      CountStores(slots, false, own.bytes());
    }
    ++counters_.all_gathers;
  }

  // What peers had mapped may be freed afterwards.
  void Meet() noexcept {
    if (aborted_ || std::uncaught_exceptions() > exceptions_at_birth_) return;
    try {
      host_->Barrier();
    } catch (const std::exception& error) {
      log_.Warning(LogScope::kThisRank, error.what());
    }
  }

  // What a gather stores into the memory of others: all its slots but, out of place, its own.
  void CountStores(const PeerSlots& slots, bool in_place, int64_t bytes) {
    counters_.gathered_bytes += (slots.count - (in_place ? 0 : 1)) * bytes;
  }

  void ThrowIfAborted(const char* op) const {
    if (!aborted_) return;
    const std::lock_guard lock(reason_mutex_);
    throw Error(ErrorCode::kPeerLost, fmt::format("{} on '{}', rank {}: aborted: {}", op,
                                                  checks_.label(), rank_, reason_));
  }

  // Registered memory that `full` lies in.
  const PeerMapping& RegionOf(const TensorView& full) const {
    const auto after = regions_.upper_bound(full.data);
    const PeerMapping* const region =
        after == regions_.begin() ? nullptr : std::prev(after)->second.get();
    MR_REQUIRE(
        ErrorCode::kInvalidArgument,
        region != nullptr && full.data + full.bytes() <= region->base(rank_) + region->bytes(),
        "communicator '{}', rank {}: {} bytes at {} do not lie in registered memory, which peers "
        "need",
        checks_.label(), rank_, full.bytes(), static_cast<const void*>(full.data));
    return *region;
  }

  // All lanes of this communicator; a run's communicators together: PeerTrouble.
  void RequireRoom() const {
    const std::string trouble = WhyNoRoom(
        {.peers = options_.gather_blocks + options_.reduce_blocks + options_.exchange_blocks},
        PeerRoomOf(device_));
    MR_REQUIRE(ErrorCode::kConfig, trouble.empty(),
               "communicator '{}', rank {}: no room on GPU {}: {}", checks_.label(), rank_,
               device_.ordinal(), trouble);
  }

  // A block for every `kEach` bytes of a shard: all ranks find the same number.
  static int Blocks(int64_t shard_bytes, int most) {
    constexpr int64_t kEach = 8192;
    return static_cast<int>(std::clamp<int64_t>((shard_bytes + kEach - 1) / kEach, 1, most));
  }

  PeerCall Begin(Kind kind, const TensorView& full, int64_t shard_bytes, Stream& stream) const {
    const int lane = kind == Kind::kReduce ? 1 : kind == Kind::kExchange ? 2 : 0;
    constexpr CommOp kOps[] = {CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kAllToAll};
    const int most[] = {options_.gather_blocks, options_.reduce_blocks, options_.exchange_blocks};
    ThrowIfAborted(Name(kOps[lane]));
    MR_CHECK_EQ(AsCuda(stream).device().ordinal(), device_.ordinal(),
                "communicator '{}' is given a stream of another GPU", checks_.label());
    const PeerMapping& region = RegionOf(full);
    PeerCall call;
    for (int r = 0; r < world_; ++r)
      call.lanes[r] = reinterpret_cast<PeerLane*>(lane_mapping_->base(r)) + lane;
    uint32_t* const words = reinterpret_cast<uint32_t*>(words_->data());
    call.stop = words + kStop;
    call.strange = words + kStrange;
    call.signature = Signature(kind, full.dtype(), full.data - region.base(rank_), full.numel());
    call.rank = rank_;
    call.world = world_;
    call.blocks = Blocks(shard_bytes, most[lane]);
    call.fault = options_.fault;
    return call;
  }

  PeerSlots Slots(const TensorView& full, bool in_place) const {
    const PeerMapping& region = RegionOf(full);
    PeerSlots slots;
    for (int k = 1; k <= world_ - (in_place ? 1 : 0); ++k)
      slots.slot[slots.count++] =
          region.At((rank_ + k) % world_, full.data) + rank_ * (full.bytes() / world_);
    return slots;
  }

  PeerPieces Pieces(const TensorView& sent, const TensorView& received,
                    const LiveRows& live) const {
    const PeerMapping& region = RegionOf(received);
    PeerPieces pieces;
    pieces.bytes = sent.bytes() / world_;
    for (int k = 1; k <= world_; ++k) {
      const int r = (rank_ + k) % world_;
      pieces.piece[pieces.count++] = {sent.data + r * pieces.bytes,
                                      region.At(r, received.data) + rank_ * pieces.bytes, r};
    }
    if (!live.counts) return pieces;
    pieces.counts = live.counts.as<int32_t>();
    pieces.counts_each = static_cast<int>(live.counts.numel() / world_);
    pieces.row_bytes = live.row_numel * Bytes(sent.dtype());
    return pieces;
  }

  const std::unique_ptr<Communicator> host_;
  const std::function<std::unique_ptr<Communicator>()> make_;  // of other_
  std::unique_ptr<Communicator> other_;                        // null until it is needed
  std::atomic<Communicator*> other_seen_ = nullptr;            // the same, for other threads
  CudaDevice& device_;
  Log& log_;
  const PeerOptions options_;
  const OperandChecks checks_;
  const int rank_;
  const int world_;
  const int exceptions_at_birth_ = std::uncaught_exceptions();
  std::unique_ptr<HostBuffer> words_;
  std::unique_ptr<DeviceBuffer> lanes_;
  std::unique_ptr<PeerMapping> lane_mapping_;
  std::map<const std::byte*, std::unique_ptr<PeerMapping>> regions_;  // by their base
  CommCounters counters_;
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

BlockRoom PeerRoomOf(const CudaDevice& device) {
  MR_CUDA(cudaSetDevice(device.ordinal()));
  return {.multiprocessors = device.properties().multiProcessorCount,
          .peers_each =
              std::min({PeerGatherBlocksEach(), PeerReduceBlocksEach(), PeerExchangeBlocksEach()})};
}

std::unique_ptr<PeerCommunicator> MakePeerCommunicator(
    std::unique_ptr<Communicator> host, std::function<std::unique_ptr<Communicator>()> other,
    CudaDevice& device, const std::string& label, const PeerOptions& options, Log& log) {
  return std::make_unique<PeerCommunicatorImpl>(std::move(host), std::move(other), device, label,
                                                options, log);
}

}  // namespace millrace
