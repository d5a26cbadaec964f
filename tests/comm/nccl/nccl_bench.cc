// Times of all-gather and reduce-scatter by message size, as a markdown table.
//
//   mpirun -n 2 nccl_bench [OPTIONS...]      or, with the GPUs as threads of one process:  nccl_bench
//   [OPTIONS...]
//
// Each OPTIONS is a line of NcclOptions ("plain" for none): default "plain" "symmetric". A sample is the time
// of one graph with several calls on rank-private data, divided by their number; per sample the slowest rank
// counts. Bytes are those of the full buffer; bus bandwidth is bytes * (W - 1) / W / median, which links see.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "comm/nccl/nccl_check.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/comm/nccl/gpu_ranks.h"
#include "tests/comm/nccl/round_fill.h"

namespace millrace::testing {
namespace {

constexpr int kWarmUps = 5, kSamples = 30;
constexpr int64_t kLeast = 64 << 10, kMost = 256 << 20;

class TimedEvent {
 public:
  TimedEvent() { MR_CUDA(cudaEventCreate(&event_)); }
  ~TimedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

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
  const std::string own(reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(double));
  for (const std::string& other : comm.HostAllGather(own))
    for (size_t i = 0; i < slowest.size(); ++i) {
      double sample = 0;
      std::memcpy(&sample, other.data() + i * sizeof(double), sizeof(double));
      slowest[i] = std::max(slowest[i], sample);
    }
  std::sort(slowest.begin(), slowest.end());
  return slowest;
}

void Measure(GpuRank& rank, const std::string& options, bool reduces, DType dtype, Communicator& comm,
             TestArena& arena, Stream& stream) {
  const int world = rank.world();
  arena.Reset();
  const TensorView round = arena.Take(DType::kI64, 1);
  ToDevice(rank, std::vector<int64_t>{3}, round, stream);
  for (int64_t bytes = kLeast; bytes <= kMost; bytes *= 4) {
    const int64_t n = bytes / world / Bytes(dtype);
    arena.Reset();
    arena.Take(DType::kI64, 1);
    const TensorView full = arena.Take(dtype, n * world), shard = arena.Take(dtype, n);
    for (const TensorView& view : {full, shard})
      LaunchRoundFill(dtype, view.data, view.numel(), rank.rank(), round.as<int64_t>(), AsCuda(stream).get());
    const auto call = [&] {
      reduces ? comm.ReduceScatterSum(full, shard, {}, stream) : comm.AllGather(shard, full, {}, stream);
    };
    const std::vector<double> us =
        SlowestOf(comm, Samples(rank, comm, stream, call, bytes >= 64 << 20 ? 4 : 20));
    const double median = us[us.size() / 2];
    const double bus = static_cast<double>(full.bytes()) * (world - 1) / world / median * 1e-3;
    if (rank.rank() == 0)
      std::printf("| %s | %s | %s | %lld | %.1f | %.1f | %.1f | %.1f |\n", options.c_str(),
                  reduces ? "reduce-scatter" : "all-gather", std::string(Name(dtype)).c_str(),
                  static_cast<long long>(full.bytes()), us[us.size() / 10], median, us[us.size() * 9 / 10],
                  bus);
    std::fflush(stdout);
  }
}

void Bench(GpuRank& rank, const std::string& options) {
  const auto stream = rank.device.MakeStream("gather");
  size_t free_before = 0, free_after = 0, total = 0;
  MR_CUDA(cudaMemGetInfo(&free_before, &total));
  const auto start = std::chrono::steady_clock::now();
  const auto comm = rank.nccl.Make(rank.Everyone(), "bench");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  MR_CUDA(cudaMemGetInfo(&free_after, &total));
  if (rank.rank() == 0)
    std::printf("<!-- %s: %d x %s, NCCL %d, joined in %.2f s, communicator %.0f MiB -->\n", options.c_str(),
                rank.world(), rank.device.name().c_str(), NcclVersion(), seconds.count(),
                static_cast<double>(free_before - free_after) / (1 << 20));
  TestArena arena(rank, {comm.get()}, kMost + kMost / rank.world() + (1 << 20));
  comm->Connect();
  for (const bool reduces : {false, true})
    for (const DType dtype : {DType::kBF16, DType::kF32})
      Measure(rank, options, reduces, dtype, *comm, arena, *stream);
}

int BenchAll(const std::vector<std::string>& choices) {
  bool heading = true;
  for (const std::string& choice : choices) {
    NcclOptions options = ParseNcclOptions(choice == "plain" ? "" : choice);
    options.timeout = std::chrono::seconds(120);
    RunOnGpus(options, [&](GpuRank& rank) {
      if (heading && rank.rank() == 0)
        std::printf(
            "| options | op | dtype | bytes | p10 us | median us | p90 us | bus GB/s "
            "|\n|---|---|---|--:|--:|--:|--:|--:|\n");
      Bench(rank, choice);
    });
    heading = false;
  }
  return 0;
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  std::vector<std::string> choices(argv + 1, argv + argc);
  if (choices.empty()) choices = {"plain", "symmetric"};
  return millrace::testing::GpuMain(argc, argv, [&] { return millrace::testing::BenchAll(choices); });
}
