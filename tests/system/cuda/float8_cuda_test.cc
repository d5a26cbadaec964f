// Training with linears in FP8 on a GPU beside the CPU, and against itself: what may change no bit
// there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

// Sizes that GPUs take, past a block of 128 in each direction and no multiple of it.
Base GpuBase(Family family, LinearEncoding linear, Precision precision, int64_t accumulate) {
  Base base = MakeBase(family, family == Family::kGpt2, precision, 1, accumulate);
  Config& config = base.trial.config;
  config.precision.linear = linear;
  config.model.d_model = 144;
  config.model.heads = 3;
  config.model.head_dim = 48;
  config.model.kv_heads = family == Family::kGpt2 ? 3 : 1;
  config.model.ffn = 160;
  config.model.seq_len = 48;
  config.model.init_std = 0.05;
  config.train.micro_batch = 4;
  base.trial.steps = 20;
  base.name += ", " + std::string(Name(linear));
  return base;
}

Outcome OnHost(const Trial& trial) {
  std::unique_ptr<Ranks> device = UseRanks(MakeHostRanks());
  Outcome outcome = RunTrial(trial);
  UseRanks(std::move(device));
  return outcome;
}

struct Difference {
  double loss = 0;       // the most of any step
  double grad_norm = 0;  // of the first step, as a share
};

Difference Between(const Outcome& a, const Outcome& b) {
  Difference difference;
  for (size_t s = 0; s < a.scalars.size(); ++s)
    difference.loss = std::max(difference.loss, std::abs(a.scalars[s].loss - b.scalars[s].loss));
  difference.grad_norm = std::abs(a.scalars[0].grad_norm / b.scalars[0].grad_norm - 1);
  return difference;
}

// Values that another order of sums moves by a last digit are a whole step of e4m3 apart where they
// lie between two of its numbers. How much that changes is measured on the CPU, by a norm's eps
// that is off by 1e-3 or 4e-3 of itself: it moves normalised values by some units in f32's last
// place. Of four such runs the largest difference says what two implementations may differ by; a
// GPU is allowed four times as much.
Difference BoundOf(const Trial& trial, const Outcome& host) {
  Difference bound;
  for (const double off : {1e-8, -1e-8, 4e-8, -4e-8}) {
    Trial other = trial;
    other.config.model.norm_eps += off;
    const Difference difference = Between(OnHost(other), host);
    bound.loss = std::max(bound.loss, 4 * difference.loss);
    bound.grad_norm = std::max(bound.grad_norm, 4 * difference.grad_norm);
  }
  return bound;
}

TEST_CASE("twenty steps in FP8 on a GPU give the CPU's losses, as far as rounding decides",
          "[fp8]") {
  struct Case {
    LinearEncoding linear;
    Family family;
    Precision precision;
  };
  for (const Case& c : {Case{LinearEncoding::kFp8Tensor, Family::kGpt2, Precision::kBf16},
                        {LinearEncoding::kFp8Tensor, Family::kLlama, Precision::kFp32},
                        {LinearEncoding::kFp8Block, Family::kGpt2, Precision::kFp32},
                        {LinearEncoding::kFp8Block, Family::kLlama, Precision::kBf16}}) {
    Base base = GpuBase(c.family, c.linear, c.precision, 2);
    const Outcome host = OnHost(base.trial), device = RunTrial(base.trial);
    REQUIRE(device.scalars.back().adam_t == base.trial.steps);
    const Difference bound = BoundOf(base.trial, host), found = Between(device, host);
    INFO(base.name << ": losses differ by " << found.loss << ", " << bound.loss
                   << " is allowed; the first gradient's norm by " << found.grad_norm << ", "
                   << bound.grad_norm << " is allowed");
    CHECK(found.loss <= bound.loss);
    CHECK(found.grad_norm <= bound.grad_norm);
    CHECK(bound.grad_norm < 0.05);  // a scale that is off by a power of two shows
    base.trial.config.optimizer.lr *= 4;
    CHECK(Between(RunTrial(base.trial), host).loss > bound.loss);
  }
}

// What may not change a bit there.
void CheckBits(LinearEncoding linear) {
  const Family family = linear == LinearEncoding::kFp8Tensor ? Family::kGpt2 : Family::kLlama;
  Base base = GpuBase(family, linear, Precision::kBf16, 2);
  base.trial.steps = 4;
  base.trial.config.execution.deterministic = true;
  INFO(base.name);
  const Outcome reference = RunTrial(base.trial);
  REQUIRE(reference.scalars.back().adam_t == base.trial.steps);
  const auto with = [&](const char* name, auto&& change) {
    INFO(name);
    Trial trial = base.trial;
    change(trial.config);
    CHECK(RunTrial(trial).Bits() == reference.Bits());
  };
  with("again", [](Config&) {});
  with("graph off", [](Config& c) { c.execution.graph = GraphMode::kOff; });
  with("checked", [](Config& c) { c.execution.checked = true; });
  with("recompute block", [](Config& c) { c.memory.recompute = Recompute::kBlock; });
  with("concat direct", [](Config& c) { c.sharding.grad_concat = GradConcat::kDirect; });
  with("concat every", [](Config& c) { c.sharding.grad_concat = GradConcat::kEvery; });
  with("gathered in FP8", [](Config& c) { c.precision.gather = WeightGather::kLinear; });
  with("gathered in FP8, recompute block", [](Config& c) {
    c.precision.gather = WeightGather::kLinear;
    c.memory.recompute = Recompute::kBlock;
  });
  Trial compute = base.trial;
  compute.config.precision.linear = LinearEncoding::kCompute;
  CHECK(RunTrial(compute).Bits() != reference.Bits());
}

// The borders of shards cut blocks and parameters; GPT-2 has biases, which come with the scales.
TEST_CASE("weights gathered in FP8 on GPUs have the bits of those quantized behind the gather",
          "[fp8]") {
  const int world = HaveDevices(2) ? 2 : 1;
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Family family : {Family::kGpt2, Family::kLlama}) {
      Base base = GpuBase(family, linear, Precision::kBf16, 2);
      base.trial.world = world;
      base.trial.steps = 4;
      base.trial.config.execution.deterministic = true;
      INFO(base.name << " on " << world << " ranks");
      const Outcome reference = RunTrial(base.trial);
      REQUIRE(reference.scalars.back().adam_t == base.trial.steps);
      base.trial.config.precision.gather = WeightGather::kLinear;
      for (const GraphMode graph : {GraphMode::kStep, GraphMode::kMicrobatch, GraphMode::kOff}) {
        base.trial.config.execution.graph = graph;
        const Outcome narrow = RunTrial(base.trial);
        CHECK(narrow.Bits() == reference.Bits());
        CHECK(narrow.plan_hash != reference.plan_hash);
        RequireCounters(base.trial, narrow);
      }
    }
}

TEST_CASE("FP8 on a GPU: what may not change a bit does not, and FP8 is at work", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings) {
    DYNAMIC_SECTION(Name(linear)) { CheckBits(linear); }
  }
}

}  // namespace
}  // namespace millrace::test
