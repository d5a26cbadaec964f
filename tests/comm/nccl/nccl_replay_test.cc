// comm/nccl: eager and captured calls, run after run, on several streams at once.
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/cuda/cuda_check.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/nccl/round_fill.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

constexpr int kRounds = 50;

template <typename T>
std::string Bits(GpuRank& rank, const TensorView& view, Stream& stream) {
  const std::vector<T> values = ToHost<T>(rank, view, stream);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A reduce-scatter, the gather of its shards in place and not, and an all-reduce, of terms whose
// sums depend on the order of additions.
template <typename T>
class Chain {
 public:
  Chain(GpuRank& rank, Communicator& comm, TestArena& arena, int64_t n, Stream& stream)
      : rank_(rank),
        comm_(comm),
        stream_(stream),
        operand_(arena.Take(DTypeOf<T>(), n * comm.world_size())),
        shard_(arena.Take(DTypeOf<T>(), n)),
        gathered_(arena.Take(DTypeOf<T>(), n * comm.world_size())),
        summed_(arena.Take(DTypeOf<T>(), n * comm.world_size())) {
    std::vector<T> terms(static_cast<size_t>(operand_.numel()));
    for (int64_t i = 0; i < operand_.numel(); ++i) terms[i] = TermAs<T>(comm.rank(), i);
    ToDevice(rank_, terms, operand_, stream_);
  }

  void Issue() {
    const int64_t n = shard_.numel();
    comm_.ReduceScatterSum(operand_, shard_, {}, stream_);
    comm_.AllGather(shard_, gathered_, {}, stream_);
    const TensorView own{gathered_.data + comm_.rank() * shard_.bytes(),
                         DenseLayout(DTypeOf<T>(), {n})};
    comm_.AllGather(own, gathered_, {}, stream_);
    MR_CUDA(cudaMemcpyAsync(summed_.data, operand_.data, static_cast<size_t>(operand_.bytes()),
                            cudaMemcpyDeviceToDevice, AsCuda(stream_).get()));
    comm_.AllReduceSum(summed_, {}, stream_);
  }

  // Of everything that was computed; then overwrites it, so that the next result is a new one.
  std::string Result() {
    const std::string bits = Bits<T>(rank_, shard_, stream_) + Bits<T>(rank_, gathered_, stream_) +
                             Bits<T>(rank_, summed_, stream_);
    for (const TensorView& view : {shard_, gathered_, summed_})
      rank_.device.EnqueueFill(view.data, std::byte{0x7f}, view.bytes(), stream_);
    return bits;
  }

 private:
  GpuRank& rank_;
  Communicator& comm_;
  Stream& stream_;
  const TensorView operand_, shard_, gathered_, summed_;
};

template <typename T>
void EagerIsCaptured(GpuRank& rank, int64_t n) {
  const auto comm = rank.nccl.Make(rank.Everyone(), "world");
  TestArena arena(rank, {comm.get()}, (3 * rank.world() + 1) * n * 4 + (1 << 20));
  comm->Connect({});
  const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
  Chain<T> chain(rank, *comm, arena, n, *stream);
  chain.Issue();
  const std::string first = chain.Result();
  int eager = 0, captured = 0, after = 0;
  for (int round = 0; round < kRounds; ++round) {
    chain.Issue();
    eager += chain.Result() == first;
  }
  rank.device.BeginCapture(*stream);
  chain.Issue();
  const std::unique_ptr<Graph> graph = rank.device.EndCapture(*stream);
  for (int round = 0; round < kRounds; ++round) {
    graph->Launch(*stream);
    captured += chain.Result() == first;
    if (round % 10 != 0) continue;
    chain.Issue();  // between replays
    after += chain.Result() == first;
  }
  rank.report.Expect(eager == kRounds, "{}, n {}: {} of {} eager repetitions had the first bits",
                     Name(DTypeOf<T>()), n, eager, kRounds);
  rank.report.Expect(captured == kRounds, "{}, n {}: {} of {} replays had the eager bits",
                     Name(DTypeOf<T>()), n, captured, kRounds);
  rank.report.Expect(after == kRounds / 10,
                     "{}, n {}: {} of {} eager calls between replays had them", Name(DTypeOf<T>()),
                     n, after, kRounds / 10);
}

TEST_CASE("fifty eager repetitions and fifty replays have the bits of the first call",
          "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      EagerIsCaptured<float>(rank, 1009);
      EagerIsCaptured<float>(rank, int64_t{1} << 20);
      EagerIsCaptured<BFloat16>(rank, 65'536 + 2);
    });
}

// One communicator each for gathers and reductions, on streams of their own, as a step
// has them: fill, reduce, then gather what was reduced, while the next fill and
// reduction of another buffer run.
struct Lane {
  TensorView operand, shard, full;
};

void Overlapped(GpuRank& rank, DType dtype, int64_t n, bool captured) {
  const auto gather = rank.nccl.Make(rank.Everyone(), "gather");
  const auto reduce = rank.nccl.Make(rank.Everyone(), "reduce");
  TestArena arena(rank, {gather.get(), reduce.get()},
                  2 * (2 * rank.world() + 1) * n * 4 + (1 << 20));
  gather->Connect({});
  reduce->Connect({});
  const auto reduce_stream = rank.device.MakeStream(StreamRole::kCollectives);
  const auto gather_stream = rank.device.MakeStream(StreamRole::kCollectives);
  const TensorView round = arena.Take(DType::kI64, 1);
  Lane lanes[2];
  for (Lane& lane : lanes)
    lane = {arena.Take(dtype, n * rank.world()), arena.Take(dtype, n),
            arena.Take(dtype, n * rank.world())};
  ToDevice(rank, std::vector<int64_t>{0}, round, *reduce_stream);

  std::vector<std::unique_ptr<Event>> events;
  const auto follow = [&](Stream& later, Stream& earlier) {
    events.push_back(rank.device.MakeEvent());
    earlier.Record(*events.back());
    later.Wait(*events.back());
  };
  auto* const counter = round.as<int64_t>();
  const cudaStream_t filling = AsCuda(*reduce_stream).get();
  const auto issue = [&] {
    LaunchNextRound(counter, filling);
    for (const Lane& lane : lanes) {
      LaunchRoundFill(dtype, lane.operand.data, lane.operand.numel(), rank.rank(), counter,
                      filling);
      reduce->ReduceScatterSum(lane.operand, lane.shard, {}, *reduce_stream);
      follow(*gather_stream, *reduce_stream);
      gather->AllGather(lane.shard, lane.full, {}, *gather_stream);
    }
    follow(*reduce_stream, *gather_stream);
  };
  std::unique_ptr<Graph> graph;
  if (captured) {
    rank.device.BeginCapture(*reduce_stream);
    issue();
    graph = rank.device.EndCapture(*reduce_stream);
  }
  int64_t wrong = 0;
  for (int64_t step = 1; step <= kRounds; ++step) {
    graph ? graph->Launch(*reduce_stream) : issue();
    if (step % 5 != 0) continue;  // the others run into each other
    for (const Lane& lane : lanes) {
      const auto check = [&](const auto& values) {
        for (int64_t i = 0; i < lane.full.numel(); ++i)
          wrong += static_cast<float>(WholeSum(rank.world(), RoundIndex(step, i))) != values(i);
      };
      if (dtype == DType::kBF16) {
        const auto values = ToHost<BFloat16>(rank, lane.full, *reduce_stream);
        check([&](int64_t i) { return ToFloat(values[static_cast<size_t>(i)]); });
      } else {
        const auto values = ToHost<float>(rank, lane.full, *reduce_stream);
        check([&](int64_t i) { return values[static_cast<size_t>(i)]; });
      }
    }
  }
  rank.report.Expect(wrong == 0, "{}, n {}, captured {}: {} elements are not this round's sum",
                     Name(dtype), n, captured, wrong);
}

TEST_CASE("collectives read what the kernel before them has just written", "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      for (const bool captured : {false, true}) {
        Overlapped(rank, DType::kF32, 300, captured);
        Overlapped(rank, DType::kBF16, 40'000, captured);
        Overlapped(rank, DType::kF32, 400'000, captured);
      }
    });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
