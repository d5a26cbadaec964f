// comm/nccl keeps the contract of every communicator and factory.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/nccl/device_backed.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

TEST_CASE("GPUs keep the communicator's contract", "[comm][contract][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    for (const ContractCase& contract : CommunicatorContract()) {
      if (contract.promise != Promise::kEvery) continue;
      INFO(contract.name);
      OnGpuRanks(options, [&](GpuRank& rank) {
        contract.run(*MakeDeviceBackedFactory(rank)->Make(rank.Everyone(), "world"), rank.report);
      });
    }
}

// Meshes of all shapes that the world has: with four ranks also two replicas of two shards.
TEST_CASE("GPUs keep the factory's contract", "[comm][contract][gpu]") {
  for (const FactoryCase& contract : FactoryContract()) {
    INFO(contract.name);
    OnGpuRanks(PlainAndSymmetric().front(),
               [&](GpuRank& rank) { contract.run(*MakeDeviceBackedFactory(rank), rank.report); });
  }
}

// The words of the error that `fn` throws.
template <typename Fn>
std::string Refusal(Fn fn) {
  try {
    fn();
    return "nothing";
  } catch (const Error& error) {
    return fmt::format("{}: {}", Name(error.code()), error.what());
  }
}

TEST_CASE("between windows, operands that begin inside a word are refused and left alone",
          "[comm][gpu]") {
  if (!HavePeers()) return;
  OnGpuRanks(PlainAndSymmetric().back(), [](GpuRank& rank) {
    const auto comm = rank.nccl.Make(rank.Everyone(), "world");
    TestArena arena(rank, {comm.get()}, 1 << 20);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    const int64_t n = 127;
    const TensorView shard = arena.Take(DType::kBF16, n),
                     full = arena.Take(DType::kBF16, n * rank.world());
    std::vector<BFloat16> before(static_cast<size_t>(full.numel()));
    for (int64_t i = 0; i < full.numel(); ++i) before[i] = WholeAs<BFloat16>(Whole(rank.rank(), i));
    ToDevice(rank, before, full, *stream);
    const TensorView inside{full.data + 2, DenseLayout(DType::kBF16, {64})};
    const TensorView own{full.data + rank.rank() * shard.bytes(), shard.layout};
    const auto refused = [&](const char* op, const char* value, const std::string& words) {
      const auto contains = [&](const char* part) { return words.find(part) != words.npos; };
      rank.report.Expect(contains("invalid_argument") && contains(op) && contains("'world'") &&
                             contains(value) && contains("multiples of 4 bytes"),
                         "{}: '{}'", op, words);
    };
    refused("all_gather", "254 bytes", Refusal([&] { comm->AllGather(shard, full, {}, *stream); }));
    refused("all_gather", "254 bytes", Refusal([&] { comm->AllGather(own, full, {}, *stream); }));
    refused("reduce_scatter", "254 bytes",
            Refusal([&] { comm->ReduceScatterSum(full, shard, {}, *stream); }));
    refused("all_reduce", "in a window", Refusal([&] { comm->AllReduceSum(inside, {}, *stream); }));
    rank.report.Expect(comm->counters() == CommCounters{}, "a refused call was counted");
    const std::vector<BFloat16> after = ToHost<BFloat16>(rank, full, *stream);
    for (size_t i = 0; i < before.size(); ++i)
      rank.report.Expect(SameBits(after[i], before[i]), "element {} was changed", i);

    const TensorView even{full.data, DenseLayout(DType::kBF16, {126})};
    comm->AllReduceSum(even, {}, *stream);
    const std::vector<BFloat16> sums = ToHost<BFloat16>(rank, even, *stream);
    for (int64_t i = 0; i < even.numel(); ++i)
      rank.report.Expect(SameBits(sums[i], WholeAs<BFloat16>(WholeSum(rank.world(), i))),
                         "element {} of the sum is wrong", i);
  });
}

TEST_CASE("a communicator for small calls is right for large ones, too", "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      const auto comm = rank.nccl.MakeSmall(rank.Everyone(), "statistics");
      comm->Connect({});
      TestArena arena(rank, {comm.get()}, 8 << 20);
      const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
      for (const int64_t n : {int64_t{5}, int64_t{1'000'003}}) {
        arena.Reset();
        const TensorView sum = arena.Take(DType::kF32, n);
        std::vector<float> values(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) values[i] = WholeAs<float>(Whole(rank.rank(), i));
        ToDevice(rank, values, sum, *stream);
        comm->AllReduceSum(sum, {}, *stream);
        const std::vector<float> sums = ToHost<float>(rank, sum, *stream);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i)
          wrong += sums[i] != static_cast<float>(WholeSum(rank.world(), i));
        rank.report.Expect(wrong == 0, "n {}: {} sums are wrong", n, wrong);
      }
    });
}

TEST_CASE("the first exercise passes and is not counted", "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      const auto comm = rank.nccl.Make(rank.Everyone(), "world");
      comm->Connect({});
      comm->CheckHealth();
      rank.report.Expect(comm->counters() == CommCounters{},
                         "{} gathers, {} bytes reduced were counted", comm->counters().all_gathers,
                         comm->counters().reduced_bytes);
    });
}

TEST_CASE("a rank alone copies in stream order, eager and captured", "[comm][gpu]") {
  OnGpuRanks({}, [](GpuRank& rank) {
    const auto comm = rank.nccl.Make({rank.rank()}, "alone");
    TestArena arena(rank, {comm.get()}, 1 << 20);
    const int64_t n = 1003;
    const TensorView from = arena.Take(DType::kF32, n), to = arena.Take(DType::kF32, n);
    const TensorView again = arena.Take(DType::kF32, n);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[i] = TermAs<float>(rank.rank(), i);
    ToDevice(rank, values, from, *stream);
    comm->ReduceScatterSum(from, to, {}, *stream);
    comm->AllReduceSum(to, {}, *stream);
    rank.report.Expect(ToHost<float>(rank, to, *stream) == values,
                       "an eager sum of one is not the operand");

    rank.device.BeginCapture(*stream);
    comm->AllGather(to, again, {}, *stream);
    comm->AllGather(again, again, {}, *stream);
    const std::unique_ptr<Graph> graph = rank.device.EndCapture(*stream);
    rank.report.Expect(graph->nodes() == 1, "{} nodes for one copy", graph->nodes());
    graph->Launch(*stream);
    rank.report.Expect(ToHost<float>(rank, again, *stream) == values,
                       "a captured gather of one differs");
  });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
