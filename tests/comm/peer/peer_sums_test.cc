// comm/peer: all-reduces over the memory of peers have the bits of the host's sum in rank order, as
// packs and by slices, in any order of arrival, eager and captured. As peer_test.cc runs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>

#include "comm/launched_bytes.h"
#include "comm/peer/peer_communicator.h"
#include "comm/peer/peer_packs.h"
#include "runtime/base/cuda/launch.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/nccl/device_backed.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/nccl/round_fill.h"
#include "tests/comm/nccl/stuck_gather.h"
#include "tests/comm/peer/peer_case.h"
#include "tests/comm/peer/round_check.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

constexpr int64_t kPacksOnly = 1 << 30, kSlicesOnly = 0;  // PeerOptions::packed_bytes

PeerOptions Packing(int64_t most) {
  PeerOptions options = Options();
  options.packed_bytes = most;
  return options;
}

TEST_CASE("peers keep the communicator's contract, and add in rank order",
          "[comm][contract][gpu]") {
  for (const int64_t packed : {kPacksOnly, kSlicesOnly})
    for (const ContractCase& contract : CommunicatorContract()) {
      if (contract.promise == Promise::kHost) continue;
      INFO(contract.name << ", packs up to " << packed);
      OnPeers([&](GpuRank& rank) {
        contract.run(*MakeDeviceBacked(rank, MakePeer(rank, "world", Packing(packed))),
                     rank.report);
      });
    }
}

// One all-reduce, with an element on each side of the buffer that stays.
template <typename T>
void Sum(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, Stream& stream, int64_t n,
         int64_t offset) {
  arena.Reset();
  const TensorView all = arena.Take(DTypeOf<T>(), offset + n + 1);
  const TensorView buffer{all.data + offset * static_cast<int64_t>(sizeof(T)),
                          DenseLayout(DTypeOf<T>(), {n})};
  std::vector<T> terms(static_cast<size_t>(all.numel()));
  for (int64_t i = 0; i < all.numel(); ++i) terms[i] = TermAs<T>(rank.rank(), n + i);
  ToDevice(rank, terms, all, stream);
  const CommCounters before = comm.counters();
  comm.AllReduceSum(buffer, {}, stream);
  const CommCounters counted = comm.counters() - before;
  const std::vector<T> result = ToHost<T>(rank, all, stream);
  int64_t wrong = 0;
  for (int64_t i = 0; i < all.numel(); ++i) {
    const bool within = i >= offset && i < offset + n;
    wrong += !SameBits(result[i], within ? RankOrderOracle<T>(rank.world(), n + i) : terms[i]);
  }
  rank.report.Expect(wrong == 0, "sum of {} {}, offset {}: {} wrong", n, Name(DTypeOf<T>()), offset,
                     wrong);
  rank.report.Expect(
      counted.all_reduces == 1 && counted.reduce_scatters == 0 && counted.all_gathers == 0 &&
          counted.reduced_bytes == 0 && counted.gathered_bytes == 0 &&
          counted.all_reduced_bytes == LaunchedAllReduceBytes(rank.world(), n, sizeof(T)),
      "{} elements: {} all-reduces, {} bytes were counted", n, counted.all_reduces,
      counted.all_reduced_bytes);
  comm.Barrier();  // no rank fills what a peer's host still compares
}

template <typename T>
void Sums(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, Stream& stream) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t limit = MostPackedBytes(rank.world(), kPeerAllReduceBlocks) / kSize;
  for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{127}, int64_t{1009}, 8192 / kSize,
                          64 * 1024 / kSize, limit - 1, limit, limit + 1, int64_t{1'000'003}})
    for (const int64_t offset : {0, 1, 2, 5})
      if (n <= limit + 1 || offset <= 1) Sum<T>(rank, comm, arena, stream, n, offset);
}

TEST_CASE("an all-reduce has the bits of the host's sum in rank order", "[comm][gpu]") {
  for (const int64_t packed : {kPacksOnly, kSlicesOnly})
    OnPeers([packed](GpuRank& rank) {
      const auto comm = MakePeer(rank, "world", Packing(packed));
      TestArena arena(rank, {comm.get()}, 8 * 1'001'000);
      const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
      Sums<float>(rank, *comm, arena, *stream);
      Sums<BFloat16>(rank, *comm, arena, *stream);
      Sums<Float16>(rank, *comm, arena, *stream);
      Sums<double>(rank, *comm, arena, *stream);
    });
}

// Calls of sizes that change, so that blocks come and go and packs and slices alternate, between
// ranks that come late at random. Each is written right before it and checked right behind it, on
// the device: what another call has left would be seen.
class ChangingCalls {
 public:
  ChangingCalls(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, DType dtype,
                StreamRole role)
      : rank_(rank),
        comm_(comm),
        stream_(rank.device.MakeStream(role)),
        round_(arena.Take(DType::kI64, 1)),
        wrong_(arena.Take(DType::kI64, 1)),
        buffer_(arena.Take(dtype, kMost)) {
    for (const TensorView& word : {round_, wrong_})
      ToDevice(rank, std::vector<int64_t>{0}, word, *stream_);
  }

  // Returns the elements that were wrong.
  int64_t Run(bool captured, int calls) {
    constexpr int kInGraph = 20;
    std::unique_ptr<Graph> graph;
    if (captured) {
      rank_.device.BeginCapture(*stream_);
      for (int call = 0; call < kInGraph; ++call) Issue(call);
      graph = rank_.device.EndCapture(*stream_);
      for (int call = 0; call < calls; call += kInGraph) graph->Launch(*stream_);
    } else {
      for (int call = 0; call < calls; ++call) Issue(call);
    }
    stream_->Sync();
    comm_.Barrier();
    return ToHost<int64_t>(rank_, wrong_, *stream_)[0];
  }

 private:
  static constexpr int64_t kMost = 300'000;
  static constexpr int kLate = 20;  // microseconds

  void Issue(int call) {
    constexpr int64_t kMosts[] = {8, 700, 5000, 5000, 40'000, kMost};
    const uint64_t mixed = Mixed(0, call);
    const auto n = static_cast<int64_t>(1 + (mixed >> 8) % kMosts[mixed % std::size(kMosts)]);
    const auto at = static_cast<int64_t>((mixed >> 40) % 3);  // behind an aligned address
    const TensorView view{buffer_.data + at * Bytes(buffer_.dtype()),
                          DenseLayout(buffer_.dtype(), {std::min(n, kMost - at)})};
    auto* const round = round_.as<int64_t>();
    const cudaStream_t stream = AsCuda(*stream_).get();
    LaunchNextRound(round, stream);
    LaunchDelay(rank_.rank(), round, 1, kLate, stream);
    LaunchRoundFill(view.dtype(), view.data, view.numel(), rank_.rank(), round, stream);
    comm_.AllReduceSum(view, {}, *stream_);
    // Of one slice, the first, that is all of it.
    LaunchRoundCheck(RoundResult::kSums, view.dtype(), view.data, view.numel(), 0, rank_.world(),
                     round, wrong_.as<unsigned long long>(), stream);
  }

  GpuRank& rank_;
  PeerCommunicator& comm_;
  const std::unique_ptr<Stream> stream_;
  const TensorView round_, wrong_, buffer_;
};

struct How {
  const char* name;
  bool captured;
  StreamRole role;
  EarlyLaunch early;
};
// On a stream of collectives; captured on one of computations, where packs begin beside the kernel
// that writes what they add.
constexpr How kHow[] = {{"eager", false, StreamRole::kCollectives, EarlyLaunch::kOff},
                        {"captured", true, StreamRole::kCollectives, EarlyLaunch::kOff},
                        {"in a chain", true, StreamRole::kCompute, EarlyLaunch::kEnd}};

TEST_CASE("a thousand all-reduces of changing sizes, eager and captured", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    for (const int blocks : {1, 3, kPeerAllReduceBlocks}) {
      PeerOptions options = Options();
      options.all_reduce_blocks = blocks;
      const auto comm = MakePeer(rank, "world", options);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (const How& how : kHow) {
          TestArena arena(rank, {comm.get()}, 2 << 20);
          rank.device.Attached<cuda::LaunchPolicy>().early = how.early;
          ChangingCalls changing(rank, *comm, arena, dtype, how.role);
          const int64_t wrong = changing.Run(how.captured, 1000);
          rank.report.Expect(wrong == 0, "{}, {} blocks, {}: {} elements are wrong", Name(dtype),
                             blocks, how.name, wrong);
        }
    }
  });
}

TEST_CASE("an all-reduce outside registered memory is refused, as packs and by slices",
          "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    const auto memory = rank.device.Allocate(4 << 20, "unregistered");
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    for (const int64_t n : {int64_t{8}, int64_t{1 << 20}}) {
      const std::string refusal = Thrown([&] {
        comm->AllReduceSum({memory->data(), DenseLayout(DType::kF32, {n})}, {}, *stream);
      });
      rank.report.Expect(
          Contains(refusal, "invalid_argument") && Contains(refusal, "registered memory"),
          "{} elements: '{}'", n, refusal);
    }
    rank.report.Expect(comm->counters() == CommCounters{}, "a refused call was counted");
  });
}

TEST_CASE("abort ends an all-reduce whose peers do not come", "[comm][gpu]") {
  for (const int64_t n : {int64_t{1024}, int64_t{1} << 18})
    OnPeers([n](GpuRank& rank) {
      const auto meet = rank.host.Make(rank.Everyone(), "meet");
      const auto comm = MakePeer(rank, "stuck", Options());
      TestArena arena(rank, {comm.get()}, 2 << 20);
      const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
      const TensorView buffer = arena.Take(DType::kF32, n);
      const auto call = [&] { comm->AllReduceSum(buffer, {}, *stream); };
      if (rank.rank() == 0) {
        call();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const bool waits = cudaStreamQuery(AsCuda(*stream).get()) == cudaErrorNotReady;
        cudaGetLastError();  // which it is not
        rank.report.Expect(waits, "{} elements were summed without the peers", n);
      }
      meet->Barrier();
      comm->Abort("the disk is on fire");
      stream->Sync();  // which ends
      const std::string later = Thrown(call);
      rank.report.Expect(Contains(later, "peer_lost: all_reduce on 'stuck'") &&
                             Contains(later, "aborted: the disk is on fire"),
                         "a call after the abort says '{}'", later);
      meet->Barrier();
    });
}

TEST_CASE("ranks in different all-reduces find it out", "[comm][gpu]") {
  // Elements on the last rank and on the others: both packs, slices beside packs, both slices.
  struct Sizes {
    int64_t last, others;
  };
  for (const Sizes sizes : {Sizes{64, 65}, Sizes{1 << 18, 64}, Sizes{1 << 18, (1 << 18) + 8}})
    OnPeers([sizes](GpuRank& rank) {
      const auto meet = rank.host.Make(rank.Everyone(), "meet");
      const auto comm = MakePeer(rank, "crossed", Options());
      TestArena arena(rank, {comm.get()}, 2 << 20);
      const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
      const bool last = rank.rank() == rank.world() - 1;
      comm->AllReduceSum(arena.Take(DType::kF32, last ? sizes.last : sizes.others), {}, *stream);
      const std::string health = AwaitTrouble(*comm);
      rank.report.Expect(Contains(health, "comm: communicator 'crossed'") &&
                             Contains(health, "another collective"),
                         "{} beside {} elements, health: '{}'", sizes.last, sizes.others, health);
      meet->Barrier();
      comm->Abort("crossed");
      stream->Sync();
      meet->Barrier();
    });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
