// Hot turns on a host device, whose graphs sleep, and with a driver's library that says what each
// case wants. No GPU is needed.
#include "kernels/cuda/tuning/hot_turns.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ops/cost.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tests/support/fake_nvml.h"

namespace millrace {
namespace {

using Catch::Contains;
using test::kFakeGpu;
using test::kFakeNvml;

std::atomic<int> launched = 0;  // graphs, in all cases

// Writes its name down where another graph was launched last.
class SleepingGraph final : public Graph {
 public:
  SleepingGraph(char name, int milliseconds, std::string& log)
      : name_(name), milliseconds_(milliseconds), log_(log) {}
  void Launch(Stream&) override {
    if (log_.empty() || log_.back() != name_) log_ += name_;
    ++launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
  }
  int64_t nodes() const noexcept override { return 1; }
  void WriteDot(const std::string&) const override {}

 private:
  const char name_;
  const int milliseconds_;
  std::string& log_;
};

struct Turns {
  std::string order;
  std::vector<HotResult> results;
};

// Of graphs of 10 products in 2 ms, and of 1 in 1 ms.
Turns Take(const HotTurnOptions& options, const std::string& uuid = kFakeGpu) {
  Turns turns;
  const std::unique_ptr<Device> device = MakeHostDevice();
  const std::unique_ptr<Stream> stream = device->MakeStream(StreamRole::kCompute);
  SleepingGraph a('a', 2, turns.order), b('b', 1, turns.order);
  std::vector<HotCandidate> candidates{{a, 10}, {b, 1}};
  const NvmlGpu gpu(uuid, kFakeNvml);
  HotTurns(options, gpu, *device, *stream).Take(candidates);
  for (const HotCandidate& candidate : candidates) turns.results.push_back(candidate.Result());
  return turns;
}

TEST_CASE("candidates take turns, forwards and backwards, with a time and joules of a product") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.millijoules = test::SteadyCounter<300, 20>;
  fake.sm_mhz = [] { return 1200U; };
  const Turns turns = Take({.warm_seconds = 0.01, .turn_seconds = 0.1, .turns = 3});
  CHECK(turns.order == "abab");  // a b, b a, a b
  REQUIRE(turns.results.size() == 2);
  for (const HotResult& result : turns.results) {
    CHECK(result.no_joules == "");
    CHECK(result.sm_mhz == 1200.0);
    REQUIRE(result.millijoules.has_value());
    CHECK(result.off > 0);
    CHECK(result.off < 0.5);
    // 300 W for so many microseconds; the rest is for a machine that stops us.
    const double truth = 300 * result.microseconds / 1e3;
    CHECK(std::abs(truth / *result.millijoules - 1) <= result.off + 0.05);
  }
  // No sleep is shorter than asked for.
  CHECK(turns.results[0].microseconds >= 200);
  CHECK(turns.results[1].microseconds >= 1000);
  CHECK(turns.results[0].microseconds < turns.results[1].microseconds);
  CHECK(Take({.warm_seconds = 0.01, .turn_seconds = 0.02, .turns = 1}).order == "ab");
  CHECK_THROWS_AS(Take({.turn_seconds = 0}), Error);
}

// A reading that is over when three more graphs were launched, or after half a second.
std::atomic<int> read_beside_launches = 0;
unsigned long long ReadBesideLaunches() {
  const int before = launched;
  const double begin = test::SecondsNow();
  while (launched < before + 3 && test::SecondsNow() - begin < 0.5)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (launched >= before + 3) ++read_beside_launches;
  return test::SteadyCounter<300, 20>();
}

TEST_CASE("a reading that takes long holds no launch up") {
  test::NewFakeNvml().millijoules = ReadBesideLaunches;
  const Turns turns = Take({.warm_seconds = 0.001, .turn_seconds = 0.05, .turns = 1});
  CHECK(turns.order == "ab");
  CHECK(read_beside_launches >= 3);
}

TEST_CASE("without a counter there are times, and the reason why there are no joules") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.energy_status = test::kNvmlNotSupported;
  fake.sm_mhz = [] { return 1300U; };
  const HotTurnOptions options{.warm_seconds = 0.001, .turn_seconds = 0.03, .turns = 2};
  Turns turns = Take(options);
  CHECK(turns.order == "aba");
  for (const HotResult& result : turns.results) {
    CHECK(result.no_joules == "nvmlDeviceGetTotalEnergyConsumption: Not Supported");
    CHECK_FALSE(result.millijoules.has_value());
    CHECK(result.microseconds >= 200);
    CHECK(result.sm_mhz == 1300.0);
  }
  CHECK(fake.energy_readings == 1);  // asked once, not in each turn
  fake.clock_status = test::kNvmlNotSupported;
  turns = Take(options, "GPU-other");
  for (const HotResult& result : turns.results) {
    CHECK(result.no_joules == "nvmlDeviceGetHandleByUUID of GPU-other: Not Found");
    CHECK_FALSE(result.sm_mhz.has_value());
    CHECK(result.microseconds >= 200);
  }
}

TEST_CASE("a counter that stands still is waited for once") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.millijoules = [] { return 1ULL; };
  const double begin = test::SecondsNow();
  const Turns turns = Take({.warm_seconds = 0.001, .turn_seconds = 0.01, .turns = 4});
  const double seconds = test::SecondsNow() - begin;
  for (const HotResult& result : turns.results) {
    CHECK_THAT(result.no_joules, Contains("the energy counter moved 0 times in 1."));
    CHECK_FALSE(result.millijoules.has_value());
    CHECK(result.microseconds >= 200);
  }
  CHECK(seconds >= 1);
  const int readings = fake.energy_readings;
  CHECK(readings < 1100);  // of a second, a millisecond apart at least
}

MatmulOp<Shape> Product(int64_t m, int64_t n, int64_t k) {
  const auto dense = [](int64_t rows, int64_t cols) {
    return Shape{DenseLayout(DType::kBF16, {rows, cols}), true};
  };
  MatmulOp<Shape> op;
  op.a = dense(m, k), op.b = TransposedView(dense(n, k)), op.out = dense(m, n);
  return op;
}

TEST_CASE("hot turns are for products with the most FLOPs, equal ones together") {
  const MatmulOp<Shape> big = Product(512, 64, 64), often = Product(128, 64, 64),
                        small = Product(64, 64, 64);
  std::vector<MatmulOp<Shape>> ops(5, often);  // 5 * 2, 8 and 1 of 19
  ops.push_back(small), ops.push_back(big);
  const MatmulKey of_big = KeyOf(big).value(), of_often = KeyOf(often).value(),
                  of_small = KeyOf(small).value();
  using Keys = std::set<MatmulKey>;
  CHECK(LargestProducts(ops, 0, 0) == Keys{});
  CHECK(LargestProducts(ops, 1, 0) == Keys{of_often});
  CHECK(LargestProducts(ops, 2, 0) == Keys{of_often, of_big});
  CHECK(LargestProducts(ops, 9, 0) == Keys{of_often, of_big, of_small});
  CHECK(LargestProducts(ops, 9, 1.0 / 20) == Keys{of_often, of_big, of_small});
  CHECK(LargestProducts(ops, 9, 1.0 / 18) == Keys{of_often, of_big});
  CHECK(LargestProducts({}, 9, 0) == Keys{});

  MatmulOp<Shape> gelu = big;
  gelu.epilogue = Epilogue::kGeluGrad, gelu.pre = gelu.out;
  const MatmulKey fused = FusedKeyOf(gelu).value();
  REQUIRE(KeyOf(gelu) == of_big);
  ops.push_back(gelu);
  CHECK(LargestProducts(ops, 1, 0) == Keys{of_big, fused});  // 16 of 27
}

}  // namespace
}  // namespace millrace
