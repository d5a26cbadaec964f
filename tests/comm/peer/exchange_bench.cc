// Rates of exchanges of experts' rows, over the memory of peers beside NCCL: a markdown table.
//
//   mpirun -n 2 exchange_bench [TOKENS [TOP_K [COLUMNS]]]      8192 6 2688 unless said; bf16
//
// Even loads: of each piece of TOKENS * TOP_K rows, the most that can come, one n-th is live, n the
// ranks. A sample is the time of several calls, one behind the other, on the slowest rank; the
// median of many is shown, with GB/s of live rows that a rank sends to others. NCCL moves whole
// pieces. The last result is checked on the host: a wrong one ends the program.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl_check.h"
#include "comm/peer/peer_communicator.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/comm/nccl/gpu_ranks.h"
#include "tests/comm/nccl/round_fill.h"
#include "tests/comm/nccl/timed_event.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

constexpr int kSamples = 25, kCalls = 20, kWarmUps = 3;
constexpr int64_t kRound = 3;

struct Load {
  int64_t tokens = 8192, top_k = 6, columns = 2688;
  int64_t rows() const { return tokens * top_k; }  // of a piece
};

class Bench {
 public:
  Bench(GpuRank& rank, const Load& load)
      : rank_(rank),
        load_(load),
        live_(load.rows() / rank.world()),
        numel_(rank.world() * load.rows() * load.columns),
        stream_(rank.device.MakeStream(StreamRole::kCollectives)),
        memory_(rank.device.Allocate(2 * numel_ * Bytes(DType::kBF16), "pieces")),
        words_(rank.device.Allocate(256, "words")),
        sent_{memory_->data(), DenseLayout(DType::kBF16, {numel_})},
        received_{memory_->data() + sent_.bytes(), sent_.layout},
        counts_{words_->data() + 8, DenseLayout(DType::kI32, {rank.world()})} {
    const TensorView round{words_->data(), DenseLayout(DType::kI64, {1})};
    ToDevice(rank, std::vector<int64_t>{kRound}, round, *stream_);
    ToDevice(rank,
             std::vector<int32_t>(static_cast<size_t>(rank.world()), static_cast<int32_t>(live_)),
             counts_, *stream_);
    LaunchRoundFill(DType::kBF16, sent_.data, numel_, rank.rank(), round.as<int64_t>(),
                    AsCuda(*stream_).get());
    stream_->Sync();
  }

  DeviceBuffer& memory() { return *memory_; }  // of the pieces

  void Time(const std::string& name, Communicator& comm) {
    const cudaStream_t cuda = AsCuda(*stream_).get();
    std::vector<double> us;
    for (int sample = -kWarmUps; sample < kSamples; ++sample) {
      comm.Barrier();
      MR_CUDA(cudaEventRecord(begin_.get(), cuda));
      for (int call = 0; call < kCalls; ++call)
        comm.AllToAll(sent_, received_, {counts_, load_.columns}, *stream_);
      MR_CUDA(cudaEventRecord(end_.get(), cuda));
      stream_->Sync();
      float ms = 0;
      MR_CUDA(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
      double slowest = 0;
      for (const std::string& of_rank : comm.HostAllGather(std::to_string(1e3 * ms / kCalls)))
        slowest = std::max(slowest, std::stod(of_rank));
      if (sample >= 0) us.push_back(slowest);
    }
    Check();
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2];
    const auto remote = static_cast<double>((rank_.world() - 1) * live_ * load_.columns * 2);
    if (rank_.rank() == 0)
      std::printf("| %s | %.1f %.1f %.1f | %.0f |\n", name.c_str(), us[us.size() / 10], median,
                  us[us.size() * 9 / 10], remote / median / 1e3);
    std::fflush(stdout);
  }

 private:
  // The first and the last live element of each rank's piece.
  void Check() {
    const int64_t piece = numel_ / rank_.world();
    for (int r = 0; r < rank_.world(); ++r)
      for (const int64_t i : {int64_t{0}, live_ * load_.columns - 1}) {
        BFloat16 got;
        rank_.device.CopyToHost(&got, received_.data + (r * piece + i) * Bytes(DType::kBF16),
                                sizeof got, *stream_);
        const float want =
            static_cast<float>(Whole(r, RoundIndex(kRound, rank_.rank() * piece + i)));
        MR_CHECK(ToFloat(got) == ToFloat(ToBFloat16(want)), "element {} from rank {} is {}, not {}",
                 i, r, ToFloat(got), want);
      }
  }

  GpuRank& rank_;
  const Load load_;
  const int64_t live_, numel_;  // rows of a piece; elements of all pieces
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<DeviceBuffer> memory_, words_;
  const TensorView sent_, received_, counts_;
  const TimedEvent begin_, end_;
};

int BenchAll(const Load& load) {
  RunOnGpus({}, [&](GpuRank& rank) {
    MR_REQUIRE(ErrorCode::kConfig, rank.world() > 1, "rows are exchanged by at least two GPUs");
    if (rank.rank() == 0)
      std::printf(
          "<!-- %d x %s, NCCL %d; %lld tokens, top %lld, width %lld -->\n\n"
          "| | us (p10 median p90) | GB/s of live rows to others |\n|---|---|--:|\n",
          rank.world(), rank.device.name().c_str(), NcclVersion(),
          static_cast<long long>(load.tokens), static_cast<long long>(load.top_k),
          static_cast<long long>(load.columns));
    Bench bench(rank, load);
    for (const int blocks : {16, 32, 64}) {
      const std::string name = "peer " + std::to_string(blocks);
      PeerOptions options;
      options.exchange_blocks = blocks;
      const auto peer =
          MakePeerCommunicator(rank.host.Make(rank.Everyone(), name), rank.device, name, options);
      peer->RegisterMemory(bench.memory().data(), bench.memory().bytes());
      bench.Time(name, *peer);
      peer->UnregisterMemory(bench.memory().data());
    }
    const auto nccl = rank.nccl.Make(rank.Everyone(), "nccl");
    bench.Time("NCCL, whole pieces", *nccl);
    nccl->Barrier();
  });
  return 0;
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  millrace::testing::Load load;
  int64_t* const sizes[] = {&load.tokens, &load.top_k, &load.columns};
  for (int i = 1; i < argc && i <= 3; ++i) *sizes[i - 1] = std::atoll(argv[i]);
  return millrace::testing::GpuMain(argc, argv, [&] { return millrace::testing::BenchAll(load); });
}
