#include "runtime/exec/checked/checked_memory.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <mutex>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/error.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using test::PlanCase;

PlanCase Case(Mesh mesh) {
  PlanCase c;
  c.mesh = mesh;
  c.options.accumulate = 2;
  c.options.clip = 1;
  c.options.learning_rate.lr = 1e-2;
  c.options.comm_scratch_bytes = 1 << 21;
  return c;
}

EngineOptions Checked() {
  EngineOptions options;
  options.checked = true;
  return options;
}

// What the run fails with; "" when it does not.
std::string Failure(const PlanCase& c, const std::function<void(Engine&, int rank)>& fn,
                    ErrorCode code, const KernelTable* kernels = nullptr) {
  try {
    test::RunEngines(c, Checked(), fn, {}, kernels);
  } catch (const Error& error) {
    INFO(error.what());
    REQUIRE(error.code() == code);
    return error.what();
  }
  return "";
}

// Rewrites this rank's shard of master weights.
void Rewrite(Engine& engine, const std::string& flat,
             const std::function<void(std::vector<float>&)>& change) {
  for (size_t f = 0; f < engine.layout().flats.size(); ++f) {
    if (engine.layout().flats[f].name != flat) continue;
    const FlatId id{static_cast<int32_t>(f)};
    std::vector<float> shard = engine.ReadShard("master", id);
    change(shard);
    engine.WriteShard("master", id, shard);
  }
}

void Poke(Engine& engine, const std::string& flat, float value) {
  Rewrite(engine, flat, [&](std::vector<float>& shard) { shard[3] = value; });
}

TEST_CASE("a weight that is not finite is found by its first reader", "[exec][checked]") {
  const PlanCase c = Case({1, 1});
  const std::string message = Failure(
      c,
      [&](Engine& engine, int rank) {
        test::TrainStep(engine, c, rank, 0);
        Poke(engine, "h.1", std::numeric_limits<float>::quiet_NaN());
        test::TrainStep(engine, c, rank, 1);
      },
      ErrorCode::kNonFinite);
  REQUIRE_THAT(message, Contains("before it runs, ") && Contains("weight of h.1/ln_1") &&
                            Contains("is nan in master/h.1 at element 3"));
}

TEST_CASE("an overflow is found in the op that makes it", "[exec][checked]") {
  const PlanCase c = Case({1, 1});
  const std::string message = Failure(
      c,
      [&](Engine& engine, int rank) {
        // Weights are finite, the products of queries and keys are not.
        Rewrite(engine, "h.0", [](std::vector<float>& shard) {
          for (float& value : shard) value *= 1e37f;
        });
        test::TrainStep(engine, c, rank, 0);
      },
      ErrorCode::kNonFinite);
  REQUIRE_THAT(message, Contains("from finite operands, ") && Contains("h.0/"));
}

TEST_CASE("an overflow in f16 is found in the op that makes it", "[exec][checked]") {
  PlanCase c = Case({1, 1});
  const auto message = [&](DType compute) {
    c.precision.compute = compute;
    return Failure(
        c,
        [&](Engine& engine, int rank) {
          // Weights are below 65504, products are not.
          Rewrite(engine, "h.0", [](std::vector<float>& shard) {
            for (float& value : shard) value *= 1e4f;
          });
          test::TrainStep(engine, c, rank, 0);
        },
        ErrorCode::kNonFinite);
  };
  CHECK_THAT(message(DType::kF16), Contains("from finite operands, out of h.0/attn.proj (matmul") &&
                                       Contains("is inf in h.0/attn.proj at element"));
  CHECK(message(DType::kBF16).empty());
}

// Quantizes as the CPU does, and puts `code` into each payload of `dtype` at [1, 3].
template <DType dtype, uint8_t code>
KernelTable Spoiling() {
  KernelTable table = CpuKernels();
  table.quantize = [](const QuantizeOp<TensorView>& op, Stream& stream) {
    CpuKernels().quantize(op, stream);
    if (op.out.dtype() == dtype)
      op.out.as<uint8_t>()[op.out.stride(0) + 3 * op.out.stride(1)] = code;
  };
  return table;
}

TEST_CASE("a payload in FP8 that is not finite is found in the op that makes it",
          "[exec][checked]") {
  const auto found = [](LinearEncoding linears, const KernelTable& kernels) {
    PlanCase c = Case({1, 1});
    c.linears = linears;
    return Failure(
        c, [&](Engine& engine, int rank) { test::TrainStep(engine, c, rank, 0); },
        ErrorCode::kNonFinite, &kernels);
  };
  for (const LinearEncoding linears : {LinearEncoding::kFp8Tensor, LinearEncoding::kFp8Block}) {
    CAPTURE(Name(linears));
    CHECK(found(linears, Spoiling<DType::kE4M3, 0x7e>()).empty());  // 448
    CHECK_THAT(found(linears, Spoiling<DType::kE4M3, 0x7f>()),
               Contains("from finite operands, out of h.0/attn.qkv:quantize_x (quantize") &&
                   Contains("is nan in h.0/ln_1.fp8 at element 13"));
  }
  // Of gradients, with a scale of all.
  CHECK_THAT(
      found(LinearEncoding::kFp8Tensor, Spoiling<DType::kE5M2, 0xfc>()),
      Contains("from finite operands, out of h.2/mlp.down:d_weight:quantize_d_y (quantize") &&
          Contains("is -inf in d(h.2/mlp.add).fp8 at element 13"));
}

TEST_CASE("the rank that makes the value is blamed, not those that receive it", "[exec][checked]") {
  const PlanCase c = Case({1, 3});
  const std::string message = Failure(
      c,
      [&](Engine& engine, int rank) {
        test::TrainStep(engine, c, rank, 0);
        if (rank == 1)
          Poke(engine, "h.2", std::numeric_limits<float>::infinity());
        else
          Poke(engine, "h.2", 0.0f);
        test::TrainStep(engine, c, rank, 1);
      },
      ErrorCode::kNonFinite);
  REQUIRE_THAT(message, Contains("rank 1: before it runs, shard of gather/h.2") &&
                            Contains("is inf in master/h.2 at element 3"));
}

TEST_CASE("an injected fault passes, and is skipped on all ranks", "[exec][checked]") {
  for (const bool loss : {true, false}) {
    const PlanCase c = Case({1, 2});
    std::mutex mutex;
    int skipped = 0, after = 0;
    const std::string message = Failure(
        c,
        [&](Engine& engine, int rank) {
          test::TrainStep(engine, c, rank, 0);
          test::Injection injection;
          if (rank == 1) {
            injection.loss_nan = loss;
            if (!loss) injection.grad_unit = 2;
          }
          const StepScalars bad = test::TrainStep(engine, c, rank, 1, injection);
          const StepScalars good = test::TrainStep(engine, c, rank, 2);
          const std::lock_guard lock(mutex);
          skipped +=
              bad.applied == 0 && bad.offender_rank == 1 && bad.offender_unit == (loss ? -1 : 2);
          after += good.applied == 1 && good.adam_t == 2;
        },
        ErrorCode::kInternal);
    REQUIRE(message.empty());
    REQUIRE(skipped == 2);
    REQUIRE(after == 2);
  }
}

TEST_CASE("an evaluation is looked at, also after a step that was given a fault",
          "[exec][checked]") {
  for (const bool loss : {true, false}) {
    CAPTURE(loss);
    const PlanCase c = Case({1, 1});
    const std::string message = Failure(
        c,
        [&](Engine& engine, int rank) {
          test::Injection injection;
          injection.loss_nan = loss;
          if (!loss) injection.grad_unit = 2;
          test::TrainStep(engine, c, rank, 0, injection);
          Poke(engine, "h.1", std::numeric_limits<float>::quiet_NaN());
          std::vector<int32_t> tokens = test::TokensOf(c, rank, 9);
          tokens.resize(static_cast<size_t>(2 * (c.model.seq_len + 1)));
          engine.EvalLossSum(tokens);
        },
        ErrorCode::kNonFinite);
    CHECK_THAT(message,
               Contains("weight of h.1/ln_1") && Contains("is nan in master/h.1 at element 3"));
  }
}

TEST_CASE("a device that captures is checked op by op, too, whatever the graph, with the same bits",
          "[exec][checked]") {
  const PlanCase c = Case({1, 2});
  const std::string reference = test::TrainedBits(c, {}, 3);
  for (const GraphMode graph : {GraphMode::kStep, GraphMode::kMicrobatch, GraphMode::kOff}) {
    CAPTURE(static_cast<int>(graph));
    EngineOptions options;
    options.graph = graph;
    options.checked = true;
    int captures = 0;
    const test::MakeDevice device = [&](int) {
      return test::MakeCapturingDevice({.at_begin_capture = [&] { ++captures; }});
    };
    CHECK(test::TrainedBits(c, options, 3) == reference);
    CHECK(test::TrainedBits(c, options, 3, device) == reference);
    std::string said;
    const PlanCase one = Case({1, 1});
    test::RunEngines(
        one, options,
        [&](Engine& engine, int rank) {
          CHECK_FALSE(engine.replays());
          for (int64_t step = 0; step < 3; ++step) test::TrainStep(engine, one, rank, step);
          Rewrite(engine, "h.0", [](std::vector<float>& shard) {
            for (float& value : shard) value *= 1e37f;
          });
          try {
            test::TrainStep(engine, one, rank, 3);
          } catch (const Error& error) {
            said = error.what();
          }
        },
        device);
    CHECK_THAT(said, Contains("from finite operands, ") && Contains("h.0/"));
    CHECK(captures == 0);
  }
}

}  // namespace
}  // namespace millrace
