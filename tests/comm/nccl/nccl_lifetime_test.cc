// comm/nccl: aborts, refusals, and what remains after communicators are gone. About half a minute.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/nccl/stuck_gather.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

using std::chrono::seconds;

// Windows off: their kernels do not look at the abort flag.
void AbortStuck(GpuRank& rank, bool captured) {
  {
    const auto comm = rank.nccl.Make(rank.Everyone(), "stuck");
    comm->Connect({});
    AbortStuckGather(rank, *comm, captured, seconds(20));
  }
  // The GPU and the other ranks are as they were.
  const auto comm = rank.nccl.Make(rank.Everyone(), "after");
  rank.report.Expect(Thrown([&] { comm->Connect({}); }) == "nothing",
                     "no collective after an abort");
}

TEST_CASE("abort ends a collective whose peers do not come, eager and captured", "[comm][gpu]") {
  for (const bool captured : {false, true})
    OnGpuRanks(PlainAndSymmetric().front(),
               [captured](GpuRank& rank) { AbortStuck(rank, captured); });
}

TEST_CASE("memory that peers cannot map is refused on every rank, and harms no one",
          "[comm][gpu]") {
  if (!HavePeers()) return;
  OnGpuRanks(PlainAndSymmetric().back(), [](GpuRank& rank) {
    const auto comm = rank.nccl.Make(rank.Everyone(), "windows");
    const int last = rank.world() - 1;
    const int64_t bytes = 4 << 20;
    {  // one rank's is of the wrong kind
      const auto plain = rank.device.Allocate(bytes, "plain");
      const auto shareable = rank.nccl.AllocateArena(rank.device, bytes, "shareable");
      const std::string thrown = Thrown([&] {
        comm->RegisterMemory(rank.rank() == last ? plain->data() : shareable->data(), bytes);
      });
      rank.report.Expect(Contains(thrown, "comm: communicator 'windows'") &&
                             Contains(thrown, fmt::format("rank {} cannot register", last)) &&
                             Contains(thrown, "AllocateArena"),
                         "memory of cudaMalloc: '{}'", thrown);
    }
    const auto arena = rank.nccl.AllocateArena(rank.device, bytes, "arena");
    const int64_t mine = rank.rank() == last ? bytes - 4096 : bytes;
    const std::string thrown = Thrown([&] { comm->RegisterMemory(arena->data(), mine); });
    rank.report.Expect(Contains(thrown, "invalid_argument") &&
                           Contains(thrown, std::to_string(bytes - 4096)) &&
                           Contains(thrown, std::to_string(bytes)),
                       "unequal sizes: '{}'", thrown);
    const std::string odd = Thrown([&] { comm->RegisterMemory(arena->data() + 256, bytes / 2); });
    rank.report.Expect(Contains(odd, "not aligned to 4096"), "an address in between: '{}'", odd);
    comm->RegisterMemory(arena->data(), bytes);
    const std::string twice = Thrown([&] { comm->RegisterMemory(arena->data(), bytes); });
    rank.report.Expect(Contains(twice, "registered already"), "twice: '{}'", twice);
    comm->Connect({});
    comm->UnregisterMemory(arena->data());
    comm->RegisterMemory(arena->data(), bytes);
    comm->UnregisterMemory(arena->data());
    comm->Connect({});
  });
}

int64_t FreeBytes() {
  size_t free = 0, total = 0;
  MR_CUDA(cudaDeviceSynchronize());
  MR_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

// A gather and a reduce communicator, an arena, a captured graph, and all of it gone.
int64_t OneLife(GpuRank& rank) {
  const int64_t before = FreeBytes();
  const auto gather = rank.nccl.Make(rank.Everyone(), "gather");
  const auto reduce = rank.nccl.Make(rank.Everyone(), "reduce");
  TestArena arena(rank, {gather.get(), reduce.get()}, 64 << 20);
  gather->Connect({});
  reduce->Connect({});
  const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
  const TensorView full = arena.Take(DType::kF32, rank.world() * 5000),
                   shard = arena.Take(DType::kF32, 5000);
  rank.device.BeginCapture(*stream);
  reduce->ReduceScatterSum(full, shard, {}, *stream);
  gather->AllGather(shard, full, {}, *stream);
  const std::unique_ptr<Graph> graph = rank.device.EndCapture(*stream);
  graph->Launch(*stream);
  stream->Sync();
  return before - FreeBytes();
}

// Lives are short with few channels: their buffers are most of what a life makes and frees.
std::vector<NcclOptions> FewChannels() {
  std::vector<NcclOptions> all = PlainAndSymmetric();
  for (NcclOptions& options : all) options.max_ctas = 4;
  return all;
}

TEST_CASE("a dozen lives leave no memory behind", "[comm][gpu]") {
  constexpr int kLives = 12;
  for (const NcclOptions& options : FewChannels())
    OnGpuRanks(options, [&options](GpuRank& rank) {
      const auto meet = rank.host.Make(rank.Everyone(), "meet");
      int64_t held = 0, free_early = 0;
      for (int life = 0; life < kLives; ++life) {
        held = OneLife(rank);
        meet->Barrier();  // threads: the last to destroy frees what all hold
        if (life == 1) free_early = FreeBytes();  // CUDA and NCCL keep pools from the first
        meet->Barrier();
      }
      const int64_t lost = free_early - FreeBytes();
      rank.report.Expect(held > 0, "a life held {} bytes", held);
      rank.report.Expect(lost <= 2 << 20, "{} lives lost {} bytes", kLives - 2, lost);
      if (rank.rank() == 0)  // Catch2's WARN is not for threads
        std::printf(
            "%s: two communicators and 64 MiB of arena held %lld MiB; %d lives lost %lld bytes\n",
            ToString(options).c_str(), static_cast<long long>(held >> 20), kLives - 2,
            static_cast<long long>(lost));
    });
}

// Blocks of many sizes with a pattern in each, freed and taken anew: writes behind a block or into
// a freed one, by whatever library, change a pattern or what malloc keeps between blocks.
class Heap {
 public:
  // Returns how many blocks have changed since they were taken.
  int64_t Churn(uint32_t seed) {
    int64_t changed = 0;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      seed = seed * 1664525u + 1013904223u;
      std::vector<unsigned char>& block = blocks_[b];
      for (const unsigned char byte : block) changed += byte != Mark(b);
      if (seed >> 31) block = std::vector<unsigned char>(16 + (seed >> 8) % 6000, Mark(b));
    }
    return changed;
  }

 private:
  static unsigned char Mark(size_t b) { return static_cast<unsigned char>(1 + b % 251); }
  std::vector<std::vector<unsigned char>> blocks_{2000};
};

// Threads that end, as ranks of an embedding process do: a world, a gather and a reduce
// communicator, some eager calls, a graph of many, and all of it gone with the thread.
void OneThreadsLife(GpuRank& rank, int life) {
  Heap heap;
  int64_t changed = heap.Churn(static_cast<uint32_t>(life));
  const auto world = rank.nccl.MakeSmall(rank.Everyone(), "world");
  const auto gather = rank.nccl.Make(rank.Everyone(), "gather");
  const auto reduce = rank.nccl.Make(rank.Everyone(), "reduce");
  const int64_t n = 2560;
  TestArena arena(rank, {world.get(), gather.get(), reduce.get()},
                  (rank.world() + 1) * n * 4 + (1 << 16));
  for (Communicator* comm : {world.get(), gather.get(), reduce.get()}) comm->Connect({});
  const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
  const TensorView full = arena.Take(DType::kF32, rank.world() * n),
                   shard = arena.Take(DType::kF32, n);
  const TensorView few = arena.Take(DType::kF64, 40 * rank.world());
  const TensorView own{few.data + rank.rank() * 320, DenseLayout(DType::kF64, {40})};
  const auto issue = [&] {
    for (int i = 0; i < 24; ++i) {
      reduce->ReduceScatterSum(full, shard, {}, *stream);
      gather->AllGather(shard, full, {}, *stream);
      world->AllGather(own, few, {}, *stream);
    }
  };
  rank.device.EnqueueFill(full.data, std::byte{0}, full.bytes(), *stream);
  rank.device.EnqueueFill(few.data, std::byte{0}, few.bytes(), *stream);
  issue();
  changed += heap.Churn(static_cast<uint32_t>(life) + 1000);
  rank.device.BeginCapture(*stream);
  issue();
  std::unique_ptr<Graph> graph = rank.device.EndCapture(*stream);
  for (int i = 0; i < 5; ++i) graph->Launch(*stream);
  stream->Sync();
  graph.reset();
  changed += heap.Churn(static_cast<uint32_t>(life) + 2000);
  rank.report.Expect(changed == 0, "life {}: {} bytes of the heap were overwritten", life, changed);
}

TEST_CASE("lives on threads that end leave the heap whole", "[comm][gpu]") {
  for (int life = 0; life < 16; ++life)
    OnGpuRanks(FewChannels()[static_cast<size_t>(life % 2)],
               [life](GpuRank& rank) { OneThreadsLife(rank, life); });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
