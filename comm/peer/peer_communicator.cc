#include "comm/peer/peer_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "comm/launched_bytes.h"
#include "comm/nccl/nccl_connect.h"
#include "comm/operand_checks.h"
#include "comm/peer/peer_all_reduce.h"
#include "comm/peer/peer_exchange.h"
#include "comm/peer/peer_gather.h"
#include "comm/peer/peer_packs.h"
#include "comm/peer/peer_reduce.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_mark.h"
#include "runtime/base/cuda/gpu_wait.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// A launch; kSumSlices and kGatherSums are one all-reduce.
enum class Kind : uint32_t {
  kGather,
  kRoundingGather,
  kReduce,
  kExchange,
  kPacks,
  kSumSlices,
  kGatherSums
};
// All-reduces have a lane of their own for all their launches: they, too, may overlap others.
enum Lane : int { kGathers, kReductions, kExchanges, kAllReduces, kLanes };

Lane LaneOf(Kind kind) {
  switch (kind) {
    case Kind::kGather:
    case Kind::kRoundingGather:
      return kGathers;
    case Kind::kReduce:
      return kReductions;
    case Kind::kExchange:
      return kExchanges;
    default:
      return kAllReduces;
  }
}

// What peers map is an allocation of its own: the driver maps whole pages, where
// small allocations share one. Lanes, then staging memory of packs.
constexpr int64_t kOwnBytes = 2 << 20, kStagingAt = kOwnBytes - kStagingBytes;
static_assert(kLanes * sizeof(PeerLane) <= kStagingAt && kStagingAt % kPackBytes == 0);

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
  PeerCommunicatorImpl(std::unique_ptr<Communicator> host, CudaDevice& device,
                       const std::string& label, const PeerOptions& options, Log& log)
      : host_(std::move(host)),
        device_(device),
        log_(log),
        options_(options),
        checks_(label, host_->rank(), host_->world_size()),
        rank_(host_->rank()),
        world_(host_->world_size()) {
    MR_REQUIRE(ErrorCode::kInvalidArgument, world_ > 1,
               "communicator '{}': one rank has no peers, and two at least are needed", label);
    for (const int blocks : most_blocks_)
      MR_REQUIRE(ErrorCode::kConfig, blocks >= 1 && blocks <= kMaxPeerBlocks,
                 "peer memory: {} blocks; 1 to {} are allowed", blocks, kMaxPeerBlocks);
    RequireRoom();
    words_ = device.AllocateHost(2 * sizeof(uint32_t), "peer words of " + label);
    for (const int i : {kStop, kStrange}) *HostWord(i) = 0;
    own_ = device.Allocate(kOwnBytes, "peer lanes of " + label);
    const auto stream = device.MakeStream(StreamRole::kCompute);
    device.EnqueueFill(own_->data(), std::byte{0}, own_->bytes(), *stream);
    stream->Sync();
    own_mapping_ =
        PeerMapping::Make(*host_, device, label, own_->data(), own_->bytes(), options.gpus);
  }

  ~PeerCommunicatorImpl() override {
    // Nobody waits for peers that may never come.
    if (aborted_ || std::uncaught_exceptions() > exceptions_at_birth_) *HostWord(kStop) = 1;
    static_cast<void>(WaitForGpu());
    regions_.clear();
    own_mapping_.reset();
    Meet();
  }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_; }
  bool RoundsInGathers() const noexcept override { return true; }

  void AllGather(const TensorView& shard, const TensorView& full, const TensorView&,
                 Stream& stream) override {
    if (RoundsOnTheWay(shard, full)) return RoundingGather(shard, full, stream);
    const bool in_place = checks_.AllGather(shard, full);
    if (shard.bytes() > 0) {
      PeerCall call = Begin(Kind::kGather, full, shard.bytes(), stream);
      TakeMarks(call, call);
      const PeerSlots slots = Slots(full, rank_ * shard.bytes(), in_place);
      LaunchPeerGather(call, shard.data, slots, shard.bytes(), AsCuda(stream).get());
      CountStores(slots, in_place, shard.bytes());
    }
    WriteMarks(stream);
    ++counters_.all_gathers;
  }

  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView&,
                        Stream& stream) override {
    checks_.ReduceScatter(full, shard);
    if (shard.bytes() > 0) {
      PeerCall call = Begin(Kind::kReduce, full, shard.bytes(), stream);
      TakeMarks(call, call);
      LaunchPeerReduce(call, Slices(full, rank_ * shard.bytes()), shard.data, shard.dtype(),
                       shard.numel(), AsCuda(stream).get());
      // This rank loads its slice from each peer, and each peer loads as much from here.
      counters_.reduced_bytes += (call.world - 1) * shard.bytes();
    }
    WriteMarks(stream);
    ++counters_.reduce_scatters;
  }

  void AllReduceSum(const TensorView& buffer, const TensorView&, Stream& stream) override {
    checks_.AllReduce(buffer);
    if (buffer.bytes() > 0) {
      if (buffer.bytes() <= std::min(options_.packed_bytes, MostPackedBytes(world_, SumBlocks())))
        SumPacks(buffer, stream);
      else
        SumSlices(buffer, stream);
      counters_.all_reduced_bytes +=
          LaunchedAllReduceBytes(world_, buffer.numel(), Bytes(buffer.dtype()));
    }
    WriteMarks(stream);
    ++counters_.all_reduces;
  }

  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream& stream) override {
    checks_.AllToAll(sent, received, live);
    if (sent.bytes() > 0) {
      const int64_t bytes = sent.bytes() / world_;
      PeerCall call = Begin(Kind::kExchange, received, bytes, stream);
      TakeMarks(call, call);
      LaunchPeerExchange(call, Pieces(sent, received, live), AsCuda(stream).get());
      counters_.exchanged_bytes += (world_ - 1) * bytes;
    }
    WriteMarks(stream);
    ++counters_.all_to_alls;
  }

  bool MarkNextCall(const Device::Mark& begun, const Device::Mark& ended) override {
    const auto mark = [](const Device::Mark& of) {
      return PeerMark{reinterpret_cast<uint64_t*>(of.word), of.value};
    };
    begun_ = mark(begun);
    ended_ = mark(ended);
    return true;
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

  const CommCounters& counters() const noexcept override { return counters_; }

  void RegisterMemory(std::byte* base, int64_t bytes) override {
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
    const CommCounters before = counters_;
    ExerciseCollectives(*this, device_, NcclOptions{.timeout = options_.timeout}, uses,
                        checks_.label());
    counters_ = before;
  }

  void CheckHealth() const override {
    const uint32_t strange = *HostWord(kStrange);
    MR_REQUIRE(ErrorCode::kComm, strange == 0,
               "communicator '{}', rank {}: rank {} is in another collective, or has its buffer "
               "elsewhere",
               checks_.label(), rank_, strange - 1);
    ThrowIfAborted("check");
    host_->CheckHealth();
  }

  void Abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(reason_mutex_);
      if (!aborted_) reason_ = reason;
      aborted_ = true;
      *HostWord(kStop) = 1;
    }
    host_->Abort(reason);
  }

 private:
  static constexpr int kStop = 0, kStrange = 1;  // of words_

  volatile uint32_t* HostWord(int i) const {
    return reinterpret_cast<uint32_t*>(words_->data()) + i;
  }

  // In one launch, from and to every rank.
  void SumPacks(const TensorView& buffer, Stream& stream) {
    PeerCall call = Begin(Kind::kPacks, buffer, buffer.bytes(), stream);
    call.blocks = PackBlocks(buffer.bytes(), world_, SumBlocks());
    PeerStaging staging;
    for (int r = 0; r < world_; ++r) staging.of[r] = own_mapping_->base(r) + kStagingAt;
    staging.room = PackRoom(world_, SumBlocks());
    TakeMarks(call, call);
    // A few blocks: they may take their places beside the kernel before.
    EarlyLaunch early = device_.Attached<cuda::LaunchPolicy>().early;
    if (early == EarlyLaunch::kEnd) early = EarlyLaunch::kBegin;
    LaunchPeerAllReduce(call, staging, buffer.data, buffer.dtype(), buffer.numel(),
                        {AsCuda(stream).get(), device_.properties().multiProcessorCount, early});
  }

  // Each rank sums a slice into its own buffer, of which its peers read other slices only, and then
  // stores the sums into theirs. The last slices are shorter, or empty, and launched all the same:
  // a peer waits for their blocks.
  void SumSlices(const TensorView& buffer, Stream& stream) {
    constexpr int64_t kUnit = 16;  // bytes of a slice are a multiple of
    const int64_t slice = RoundUp(CeilDiv(buffer.bytes(), world_), kUnit);
    const int64_t begin = std::min(rank_ * slice, buffer.bytes()),
                  bytes = std::min(slice, buffer.bytes() - begin);
    std::byte* const own = buffer.data + begin;
    const cudaStream_t cuda = AsCuda(stream).get();
    PeerCall sum = Begin(Kind::kSumSlices, buffer, slice, stream),
             gather = Begin(Kind::kGatherSums, buffer, slice, stream);
    TakeMarks(sum, gather);
    LaunchPeerReduce(sum, Slices(buffer, begin), own, buffer.dtype(), bytes / Bytes(buffer.dtype()),
                     cuda);
    LaunchPeerGather(gather, own, Slots(buffer, begin, true), bytes, cuda);
  }

  void RoundingGather(const TensorView& master, const TensorView& full, Stream& stream) {
    checks_.RoundingGather(master, full);
    const int64_t n = master.numel();
    const TensorView own{full.data + rank_ * n * Bytes(full.dtype()),
                         DenseLayout(full.dtype(), {n})};
    if (n > 0) {
      PeerCall call = Begin(Kind::kRoundingGather, full, own.bytes(), stream);
      TakeMarks(call, call);
      const PeerSlots slots = Slots(full, rank_ * own.bytes(), false);
      LaunchPeerRoundingGather(call, master.as<float>(), full.dtype(), slots, n,
                               AsCuda(stream).get());
      CountStores(slots, false, own.bytes());
    }
    WriteMarks(stream);
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

  // A gather and a reduction, which may overlap, or one of the others; more that a caller lets
  // overlap is the caller's to count, as PeerTrouble counts a run's communicators together.
  void RequireRoom() const {
    const int blocks = std::max({options_.gather_blocks + options_.reduce_blocks,
                                 options_.exchange_blocks, options_.all_reduce_blocks});
    const std::string trouble = WhyNoRoom({.peers = blocks}, PeerRoomOf(device_));
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
    constexpr CommOp kOps[kLanes] = {CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kAllToAll,
                                     CommOp::kAllReduce};
    const Lane lane = LaneOf(kind);
    ThrowIfAborted(Name(kOps[lane]));
    MR_CHECK_EQ(AsCuda(stream).device().ordinal(), device_.ordinal(),
                "communicator '{}' is given a stream of another GPU", checks_.label());
    const PeerMapping& region = RegionOf(full);
    PeerCall call;
    for (int r = 0; r < world_; ++r)
      call.lanes[r] = reinterpret_cast<PeerLane*>(own_mapping_->base(r)) + lane;
    uint32_t* const words = reinterpret_cast<uint32_t*>(words_->data());
    call.stop = words + kStop;
    call.strange = words + kStrange;
    call.signature = Signature(kind, full.dtype(), full.data - region.base(rank_), full.numel());
    call.rank = rank_;
    call.world = world_;
    call.blocks = Blocks(shard_bytes, most_blocks_[lane]);
    call.fault = options_.fault;
    return call;
  }

  // The marks of a call go with its first launch and its last one.
  void TakeMarks(PeerCall& first, PeerCall& last) {
    first.begun = std::exchange(begun_, {});
    last.ended = std::exchange(ended_, {});
  }
  // At the end of a call: where it had nothing to move, none has taken its marks.
  void WriteMarks(Stream& stream) {
    if (begun_.word == nullptr) return;
    const PeerMark begun = std::exchange(begun_, {}), ended = std::exchange(ended_, {});
    cuda::LaunchMarks({{begun.word, ended.word}, {begun.value, ended.value}, 2},
                      AsCuda(stream).get());
  }

  int SumBlocks() const { return most_blocks_[kAllReduces]; }

  // What lies `offset` bytes behind the beginning of each rank's `full`.
  PeerSlices Slices(const TensorView& full, int64_t offset) const {
    const PeerMapping& region = RegionOf(full);
    PeerSlices slices;
    for (int r = 0; r < world_; ++r) slices.slice[r] = region.At(r, full.data) + offset;
    return slices;
  }
  PeerSlots Slots(const TensorView& full, int64_t offset, bool in_place) const {
    const PeerMapping& region = RegionOf(full);
    PeerSlots slots;
    for (int k = 1; k <= world_ - (in_place ? 1 : 0); ++k)
      slots.slot[slots.count++] = region.At((rank_ + k) % world_, full.data) + offset;
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
  CudaDevice& device_;
  Log& log_;
  const PeerOptions options_;
  const std::array<int, kLanes> most_blocks_ = {options_.gather_blocks, options_.reduce_blocks,
                                                options_.exchange_blocks,
                                                options_.all_reduce_blocks};
  const OperandChecks checks_;
  const int rank_;
  const int world_;
  const int exceptions_at_birth_ = std::uncaught_exceptions();
  std::unique_ptr<HostBuffer> words_;
  std::unique_ptr<DeviceBuffer> own_;  // lanes, staging memory
  std::unique_ptr<PeerMapping> own_mapping_;
  std::map<const std::byte*, std::unique_ptr<PeerMapping>> regions_;  // by their base
  CommCounters counters_;
  PeerMark begun_, ended_;  // of the next call
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

BlockRoom PeerRoomOf(const CudaDevice& device) {
  MR_CUDA(cudaSetDevice(device.ordinal()));
  return {.multiprocessors = device.properties().multiProcessorCount,
          .peers_each = std::min({PeerGatherBlocksEach(), PeerReduceBlocksEach(),
                                  PeerExchangeBlocksEach(), PeerAllReduceBlocksEach()})};
}

std::unique_ptr<PeerCommunicator> MakePeerCommunicator(std::unique_ptr<Communicator> host,
                                                       CudaDevice& device, const std::string& label,
                                                       const PeerOptions& options, Log& log) {
  return std::make_unique<PeerCommunicatorImpl>(std::move(host), device, label, options, log);
}

}  // namespace millrace
