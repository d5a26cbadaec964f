// The same plans on the CPU and on GPUs: twenty steps to a tolerance, at every precision; and what
// only a device can get wrong: waiting inside a step, memory that does not come back.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_device.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

Outcome OnHost(const Trial& trial) {
  std::unique_ptr<Ranks> device = UseRanks(MakeHostRanks());
  Outcome outcome = RunTrial(trial);
  UseRanks(std::move(device));
  return outcome;
}

// Losses of a tiny model are about 4 and fall by tenths in twenty steps. f32: other orders of
// summation, 2^-24 each, magnified by twenty steps of Adam. bf16: two implementations may differ as
// much as either differs from f32, which on the CPU is at most 6.2e-3 over the cases below; of fp16
// 1.1e-3. A learning rate that is off by a tenth moves a loss by 9.9e-3 at least, at every
// precision.
double Tolerance(Precision precision) {
  if (precision == Precision::kFp16 || precision == Precision::kFp16All) return 1.5e-3;
  return precision == Precision::kFp32 ? 2e-4 : 8e-3;
}

constexpr std::array kPrecisions{Precision::kFp32,    Precision::kBf16, Precision::kBf16Sums,
                                 Precision::kBf16All, Precision::kFp16, Precision::kFp16All};

TEST_CASE("twenty steps on GPUs give the CPU's losses, to a tolerance") {
  for (const int world : {1, 2, 4}) {
    if (!HaveDevices(world)) continue;
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
      for (const auto precision : kPrecisions) {
        Base base = MakeBase(family, true, precision, world, 2);
        base.trial.steps = 20;
        INFO(base.name);
        const Outcome host = OnHost(base.trial), device = RunTrial(base.trial);
        for (size_t s = 0; s < host.scalars.size(); ++s) {
          INFO("step " << s);
          CHECK(std::abs(device.scalars[s].loss - host.scalars[s].loss) <= Tolerance(precision));
          CHECK(device.scalars[s].loss_scale == host.scalars[s].loss_scale);
          // The cosine of two libraries: the last digits of a double.
          CHECK(std::abs(device.scalars[s].lr - host.scalars[s].lr) <= 1e-14 * host.scalars[s].lr);
        }
      }
  }
}

TEST_CASE("the comparison notices a learning rate that is off by a tenth, at every precision") {
  for (const int world : {1, 2}) {
    if (!HaveDevices(world)) continue;
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
      for (const auto precision : kPrecisions) {
        Base base = MakeBase(family, true, precision, world, 2);
        base.trial.steps = 20;
        INFO(base.name);
        const Outcome host = OnHost(base.trial);
        base.trial.config.optimizer.lr *= 1.1;
        const Outcome device = RunTrial(base.trial);
        double apart = 0;
        for (size_t s = 0; s < host.scalars.size(); ++s)
          apart = std::max(apart, std::abs(device.scalars[s].loss - host.scalars[s].loss));
        CHECK(apart > Tolerance(precision));
      }
  }
}

std::atomic<bool> gate{true};

void BeginStepBehindTheGate(const BeginStepOp<TensorView>& op, Stream& stream) {
  MR_CUDA(cudaLaunchHostFunc(
      AsCuda(stream).get(),
      [](void*) {
        while (!gate.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
      },
      nullptr));
  CudaKernels().begin_step(op, stream);
}

// Each step waits on the device for a gate that opens only after every rank's host has issued as
// many steps as may be in flight: a wait for the device anywhere in Enqueue would never end, and
// the deadline opens the gate.
void CheckNoHostWait(Base base, ExecutionConfig::Graph graph) {
  base.trial.config.execution.graph = graph;
  INFO(base.name << ", graph " << static_cast<int>(graph));
  KernelTable kernels = CudaKernels();
  kernels.begin_step = &BeginStepBehindTheGate;
  base.trial.kernels = &kernels;
  const Trial& trial = base.trial;
  std::barrier together(trial.world);
  std::atomic<int> closed{0};
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(1);
    for (int64_t step = 0; step < 3; ++step)
      StepOn(rank, trial.config, step);  // issued, captured, launched
    together.arrive_and_wait();
    if (rank.rank == 0) gate = false;
    together.arrive_and_wait();
    std::atomic<bool> issued{false};
    std::thread watch([&] {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!issued && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!issued) gate = true;
    });
    for (int64_t step = 3; step < 3 + Engine::kStepsInFlight; ++step)
      rank.engine.Enqueue(BatchOf(trial.config, rank.world, rank.rank, step), step,
                          ValidTokens(trial.config, rank.world));
    closed += !gate.load();
    issued = true;
    watch.join();
    together.arrive_and_wait();
    gate = true;
    for (int i = 0; i < Engine::kStepsInFlight; ++i)
      counts[static_cast<size_t>(rank.rank)].push_back(rank.engine.Collect().adam_t);
  });
  CHECK(closed == trial.world);
  for (const auto& of_rank : counts)
    for (size_t i = 0; i < of_rank.size(); ++i) CHECK(of_rank[i] == 4 + static_cast<int64_t>(i));
}

constexpr auto kGraphs = {ExecutionConfig::Graph::kStep, ExecutionConfig::Graph::kMicrobatch};

TEST_CASE("no host wait inside a step: steps are issued while the first of them cannot begin") {
  using Family = ModelConfig::Family;
  for (const auto graph : kGraphs)
    for (const auto family : {Family::kGpt2, Family::kLlama, Family::kNemotronH})
      CheckNoHostWait(MakeBase(family, family == Family::kGpt2, Precision::kBf16, 1, 2), graph);
}

TEST_CASE("no host wait inside a step in which ranks exchange rows, keys or experts") {
  std::vector<Base> bases = SplitBases(ModelConfig::Family::kLlama, Precision::kBf16);
  bases.push_back(MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16, 2, 2));
  for (Base& base : ExpertBases(Precision::kBf16)) bases.push_back(std::move(base));
  for (const Base& base : bases) {
    if (!HaveDevices(base.trial.world)) continue;
    for (const auto graph : kGraphs) CheckNoHostWait(base, graph);
  }
}

TEST_CASE("twenty trainers in one process: their memory comes back") {
  for (const int world : {1, 2}) {
    if (!HaveDevices(world)) continue;
    Base base = MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16, world, 2);
    const auto used = [] {
      CudaDevice device(0);
      return device.UsedBytes();
    };
    RunTrial(base.trial);
    const Outcome first = RunTrial(base.trial);
    const int64_t before = used();
    for (int i = 0; i < 20; ++i) CHECK(RunTrial(base.trial).Bits() == first.Bits());
    // Allocations come in pieces of 2 MiB.
    CHECK(used() - before <= int64_t{4} << 20);
  }
}

}  // namespace
}  // namespace millrace::test
