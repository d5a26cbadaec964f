// comm/nccl keeps the contract of every communicator and factory.
#include <catch2/catch.hpp>

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

TEST_CASE("the first exercise passes and is not counted", "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      const auto comm = rank.nccl.Make(rank.Everyone(), "world");
      const CommCounters counters = {.all_gathers = 7, .reduced_bytes = 1234};
      comm->SetCounters(counters);
      comm->Connect();
      comm->CheckHealth();
      rank.report.Expect(comm->counters() == counters, "{} gathers, {} bytes reduced were counted",
                         comm->counters().all_gathers, comm->counters().reduced_bytes);
    });
}

TEST_CASE("a rank alone copies in stream order, eager and captured", "[comm][gpu]") {
  OnGpuRanks({}, [](GpuRank& rank) {
    const auto comm = rank.nccl.Make({rank.rank()}, "alone");
    TestArena arena(rank, {comm.get()}, 1 << 20);
    const int64_t n = 1003;
    const TensorView from = arena.Take(DType::kF32, n), to = arena.Take(DType::kF32, n);
    const TensorView again = arena.Take(DType::kF32, n);
    const auto stream = rank.device.MakeStream("gather");
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[i] = TermAs<float>(rank.rank(), i);
    ToDevice(rank, values, from, *stream);
    comm->ReduceScatterSum(from, to, {}, *stream);
    comm->AllReduceSum(to, {}, *stream);
    rank.report.Expect(ToHost<float>(rank, to, *stream) == values, "an eager sum of one is not the operand");

    rank.device.BeginCapture(*stream);
    comm->AllGather(to, again, {}, *stream);
    comm->AllGather(again, again, {}, *stream);
    const std::unique_ptr<Graph> graph = rank.device.EndCapture(*stream);
    rank.report.Expect(graph->nodes() == 1, "{} nodes for one copy", graph->nodes());
    graph->Launch(*stream);
    rank.report.Expect(ToHost<float>(rank, again, *stream) == values, "a captured gather of one differs");
  });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
