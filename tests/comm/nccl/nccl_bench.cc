// Times of all-gather and reduce-scatter by message size, as a markdown table.
//
//   mpirun -n 2 nccl_bench [--choose] [OPTIONS...]
//   nccl_bench ...                                     GPUs as threads of one process
//
// Each OPTIONS is a line of NcclOptions ("plain" for none): default "plain" "symmetric". A sample
// is the time of one graph with several calls on rank-private data, divided by their number; per
// sample the slowest rank counts. Bytes are those of the full buffer; bus bandwidth, which
// links see, is bytes * (W - 1) / W / median.
//
// --choose is for choosing options: one row for each, with the device memory that a communicator
// takes (rank 0's, in MiB: when it is made, and after its first calls) and bus bandwidths in GB/s
// at four sizes. What the environment adds (NCCL_BUFFSIZE, ...) is said in the first line.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nccl/nccl_check.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/comm/nccl/gpu_ranks.h"
#include "tests/comm/nccl/round_fill.h"
#include "tests/comm/nccl/timed_event.h"

namespace millrace::testing {
namespace {

constexpr int kWarmUps = 5, kSamples = 30;
constexpr int64_t kMost = 256 << 20;
const std::vector<int64_t> kSizes = {64 << 10, 256 << 10, 1 << 20, 4 << 20,
                                     16 << 20, 64 << 20,  kMost};
const std::vector<int64_t> kChoiceSizes = {1 << 20, 16 << 20, 64 << 20, kMost};

// Microseconds per call of each sample, on this rank.
std::vector<double> Samples(GpuRank& rank, Communicator& comm, Stream& stream,
                            const std::function<void()>& call, int calls) {
  rank.device.BeginCapture(stream);
  for (int i = 0; i < calls; ++i) call();
  const std::unique_ptr<Graph> graph = rank.device.EndCapture(stream);
  const cudaStream_t cuda = AsCuda(stream).get();
  const TimedEvent begin, end;
  std::vector<double> samples;
  comm.Barrier();
  for (int i = 0; i < kWarmUps + kSamples; ++i) {
    MR_CUDA(cudaEventRecord(begin.get(), cuda));
    graph->Launch(stream);
    MR_CUDA(cudaEventRecord(end.get(), cuda));
    stream.Sync();
    float milliseconds = 0;
    MR_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (i >= kWarmUps) samples.push_back(1e3 * milliseconds / calls);
  }
  return samples;
}

std::vector<double> SlowestOf(Communicator& comm, const std::vector<double>& samples) {
  std::vector<double> slowest = samples;
  const std::string own(reinterpret_cast<const char*>(samples.data()),
                        samples.size() * sizeof(double));
  for (const std::string& other : comm.HostAllGather(own))
    for (size_t i = 0; i < slowest.size(); ++i) {
      double sample = 0;
      std::memcpy(&sample, other.data() + i * sizeof(double), sizeof(double));
      slowest[i] = std::max(slowest[i], sample);
    }
  std::sort(slowest.begin(), slowest.end());
  return slowest;
}

// Times of one size, over all ranks.
struct Timing {
  int64_t bytes = 0;
  double p10 = 0, median = 0, p90 = 0;  // us
  double bus = 0;                       // GB/s
};

std::vector<Timing> Measure(GpuRank& rank, const std::vector<int64_t>& sizes, bool reduces,
                            DType dtype, Communicator& comm, TestArena& arena, Stream& stream) {
  const int world = rank.world();
  std::vector<Timing> timings;
  arena.Reset();
  const TensorView round = arena.Take(DType::kI64, 1);
  ToDevice(rank, std::vector<int64_t>{3}, round, stream);
  for (const int64_t bytes : sizes) {
    const int64_t n = bytes / world / Bytes(dtype) / 128 * 128;  // shards as plans align them
    arena.Reset();
    arena.Take(DType::kI64, 1);
    const TensorView full = arena.Take(dtype, n * world), shard = arena.Take(dtype, n);
    for (const TensorView& view : {full, shard})
      LaunchRoundFill(dtype, view.data, view.numel(), rank.rank(), round.as<int64_t>(),
                      AsCuda(stream).get());
    const auto call = [&] {
      reduces ? comm.ReduceScatterSum(full, shard, {}, stream)
              : comm.AllGather(shard, full, {}, stream);
    };
    const std::vector<double> us =
        SlowestOf(comm, Samples(rank, comm, stream, call, bytes >= 64 << 20 ? 4 : 20));
    Timing timing{full.bytes(), us[us.size() / 10], us[us.size() / 2], us[us.size() * 9 / 10]};
    timing.bus = static_cast<double>(timing.bytes) * (world - 1) / world / timing.median * 1e-3;
    timings.push_back(timing);
  }
  return timings;
}

int64_t UsedMiB(GpuRank& rank) {
  MR_CUDA(cudaDeviceSynchronize());
  return rank.device.UsedBytes() >> 20;
}

constexpr const char* kTimingHeads =
    "| options | op | dtype | bytes | p10 us | median us | p90 us | bus GB/s |\n"
    "|---|---|---|--:|--:|--:|--:|--:|\n";

void Bench(GpuRank& rank, const std::string& options) {
  const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
  const auto comm = rank.nccl.Make(rank.Everyone(), "bench");
  TestArena arena(rank, {comm.get()}, kMost + kMost / rank.world() + (1 << 20));
  comm->Connect({});
  for (const bool reduces : {false, true})
    for (const DType dtype : {DType::kBF16, DType::kF32})
      for (const Timing& t : Measure(rank, kSizes, reduces, dtype, *comm, arena, *stream)) {
        if (rank.rank() != 0) continue;
        std::printf("| %s | %s | %s | %lld | %.1f | %.1f | %.1f | %.1f |\n", options.c_str(),
                    reduces ? "reduce-scatter" : "all-gather", std::string(Name(dtype)).c_str(),
                    static_cast<long long>(t.bytes), t.p10, t.median, t.p90, t.bus);
        std::fflush(stdout);
      }
}

constexpr const char* kChoiceHeads =
    "| options | join s | made MiB | used MiB | gather bf16, GB/s at 1/16/64/256 MiB | reduce bf16 "
    "| reduce f32 |\n"
    "|---|--:|--:|--:|---|---|---|\n";

std::string Busses(const std::vector<Timing>& timings) {
  std::string text;
  for (const Timing& t : timings) text += fmt::format("{}{:.0f}", text.empty() ? "" : " / ", t.bus);
  return text;
}

void Choose(GpuRank& rank, const std::string& options) {
  const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
  rank.nccl.Make(rank.Everyone(), "first")->Connect({});  // a GPU loads NCCL's kernels once
  rank.host.Make(rank.Everyone(), "meet")->Barrier();     // and threads free communicators together
  const int64_t arena_bytes = kMost + kMost / rank.world() + (1 << 20);
  const int64_t before = UsedMiB(rank);
  const auto start = std::chrono::steady_clock::now();
  const auto comm = rank.nccl.Make(rank.Everyone(), "bench");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const int64_t made = UsedMiB(rank) - before;
  TestArena arena(rank, {comm.get()}, arena_bytes);
  comm->Connect({});
  const int64_t used = UsedMiB(rank) - before - (arena_bytes >> 20);
  const auto busses = [&](bool reduces, DType dtype) {
    return Busses(Measure(rank, kChoiceSizes, reduces, dtype, *comm, arena, *stream));
  };
  const std::string gather = busses(false, DType::kBF16), reduce = busses(true, DType::kBF16),
                    exact = busses(true, DType::kF32);
  if (rank.rank() != 0) return;
  std::printf("| %s | %.2f | %lld | %lld | %s | %s | %s |\n", options.c_str(), seconds.count(),
              static_cast<long long>(made), static_cast<long long>(used), gather.c_str(),
              reduce.c_str(), exact.c_str());
  std::fflush(stdout);
}

// The variables of this process's environment that NCCL reads.
std::string NcclEnvironment() {
  std::string text;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).substr(0, 5) == "NCCL_") text += fmt::format(" {}", *entry);
  return text;
}

int BenchAll(bool choose, const std::vector<std::string>& choices) {
  bool heading = true;
  for (const std::string& choice : choices) {
    NcclOptions options = ParseNcclOptions(choice == "plain" ? "" : choice);
    options.timeout = std::chrono::seconds(120);
    RunOnGpus(options, [&](GpuRank& rank) {
      if (heading && rank.rank() == 0)
        std::printf("<!-- %d x %s, NCCL %d,%s -->\n%s", rank.world(), rank.device.name().c_str(),
                    NcclVersion(), NcclEnvironment().c_str(), choose ? kChoiceHeads : kTimingHeads);
      choose ? Choose(rank, choice) : Bench(rank, choice);
    });
    heading = false;
  }
  return 0;
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  std::vector<std::string> choices(argv + 1, argv + argc);
  const bool choose = !choices.empty() && choices.front() == "--choose";
  if (choose) choices.erase(choices.begin());
  if (choices.empty()) choices = {"plain", "symmetric"};
  return millrace::testing::GpuMain(argc, argv,
                                    [&] { return millrace::testing::BenchAll(choose, choices); });
}
