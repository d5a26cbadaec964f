// What holds in every run: what no parameter covers stays zero, one rank moves nothing, unused
// parameters get no gradient, tied weights are one parameter.
#include <catch2/catch.hpp>
#include <mutex>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/error.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

constexpr const char* kKinds[] = {"master", "adam_m", "adam_v"};

// Elements of a shard that no logical element covers and that are not +0.
int64_t DirtyGaps(RankContext& rank, std::string_view kind, size_t f) {
  const FlatParam& flat = rank.run.layout.flats[f];
  const std::vector<float> shard = rank.engine.ReadShard(kind, FlatId{static_cast<int32_t>(f)});
  const int64_t begin =
      rank.engine.comms().mesh().Index(rank.rank, Axis::kShard) * flat.shard_numel;
  int64_t dirty = 0;
  for (const Range& gap : flat.gaps)
    for (int64_t i = std::max(gap.begin, begin); i < std::min(gap.end, begin + flat.shard_numel);
         ++i)
      dirty += std::bit_cast<uint32_t>(shard[static_cast<size_t>(i - begin)]) != 0;
  return dirty;
}

TEST_CASE("gaps, padded rows and tails are zero after ten steps, in master weights and moments") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
      for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {4, 2}})
        for (const auto concat :
             {ShardingConfig::GradConcat::kDirect, ShardingConfig::GradConcat::kEvery,
              ShardingConfig::GradConcat::kLast}) {
          Trial trial =
              MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2).trial;
          trial.config.parallel.replicate = replicate;
          trial.config.sharding.grad_concat = concat;
          std::vector<int64_t> dirty(static_cast<size_t>(world)), gaps(static_cast<size_t>(world));
          RunEngines(trial, [&](RankContext& rank) {
            rank.engine.InitWeights(3);
            for (int64_t step = 0; step < 10; ++step) StepOn(rank, trial.config, step);
            for (size_t f = 0; f < rank.run.layout.flats.size(); ++f) {
              gaps[static_cast<size_t>(rank.rank)] +=
                  static_cast<int64_t>(rank.run.layout.flats[f].gaps.size());
              for (const char* const kind : kKinds)
                dirty[static_cast<size_t>(rank.rank)] += DirtyGaps(rank, kind, f);
            }
          });
          for (const int64_t n : dirty) REQUIRE(n == 0);
          for (const int64_t n : gaps) REQUIRE(n > 0);
        }
}

TEST_CASE("one rank: no collective, no copy, no cast but the downcast") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Precision precision :
         {Precision::kFp32, Precision::kBf16, Precision::kBf16Sums, Precision::kBf16All})
      for (const auto sync : {ShardingConfig::GradSync::kEvery, ShardingConfig::GradSync::kLast}) {
        Trial trial = MakeBase(family, true, precision, 1, 3).trial;
        trial.config.sharding.grad_sync = sync;
        const Outcome outcome = RunTrial(trial);
        REQUIRE(outcome.counters[0].comm == CommCounters{});
        REQUIRE(outcome.counters[0].kernels == KernelCounters{});
        for (const Body& body : outcome.plan().bodies)
          for (const PlanOp& op : body.ops) {
            INFO(op.label);
            REQUIRE(!IsCollective(op.op));
          }
      }
}

// Their gradients are exact zeros, so their moments stay zero: nothing of an earlier step or of
// another buffer shows.
TEST_CASE("rows of an untied embedding that no token names keep zero moments") {
  for (const int world : {1, 3}) {
    Trial trial = MakeBase(ModelConfig::Family::kLlama, false, Precision::kFp32, world, 2).trial;
    trial.config.model.vocab = 211;
    std::vector<bool> named(static_cast<size_t>(trial.config.model.Vocab()));
    for (int64_t step = 0; step < 2; ++step)
      for (int rank = 0; rank < world; ++rank) {
        const std::vector<int32_t> tokens = BatchOf(trial.config, world, rank, step);
        const auto row = static_cast<size_t>(trial.config.model.seq_len + 1);
        for (size_t i = 0; i < tokens.size(); ++i)
          if (i % row + 1 != row)
            named[static_cast<size_t>(tokens[i])] = true;  // the last of a window is a target only
      }
    REQUIRE(std::count(named.begin(), named.end(), false) > 0);
    RunEngines(trial, [&](RankContext& rank) {
      rank.engine.InitWeights(3);
      for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
      for (const char* const kind : {"adam_m", "adam_v"})
        ForEachLogicalTensor(
            rank.engine, kind, [&](const ParamPlacement& param, std::span<const float> values) {
              if (param.spec.name != "embed.weight") return;
              const int64_t columns = param.spec.dims[1];
              for (size_t v = 0; v < named.size(); ++v) {
                bool zero = true;
                for (int64_t c = 0; c < columns; ++c)
                  zero &= values[v * static_cast<size_t>(columns) + static_cast<size_t>(c)] == 0;
                MR_CHECK(zero != named[v], "moments of token {}: named {}, zero {}", v,
                         static_cast<bool>(named[v]), zero);
              }
            });
    });
  }
}

TEST_CASE("a tied table is one parameter that both ends train; untied ends are two") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const bool tied : {true, false}) {
      const Trial trial = MakeBase(family, tied, Precision::kFp32, 2, 1).trial;
      std::vector<int64_t> tables(2);
      std::vector<int> whole(2, 1);
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(3);
        StepOn(rank, trial.config, 0);
        ForEachLogicalTensor(
            rank.engine, "adam_m", [&](const ParamPlacement& param, std::span<const float> values) {
              if (param.spec.dims[0] != trial.config.model.Vocab()) return;
              const auto r = static_cast<size_t>(rank.rank);
              ++tables[r];
              // The head's softmax gives every row of its table a gradient.
              if (param.spec.name == "lm_head.weight" || tied)
                for (int64_t v = 0; v < param.spec.dims[0]; ++v)
                  whole[r] = whole[r] && values[static_cast<size_t>(v * param.spec.dims[1])] != 0;
            });
      });
      REQUIRE(tables == std::vector<int64_t>(2, tied ? 1 : 2));
      REQUIRE(whole == std::vector<int>(2, 1));
    }
}

// Calls of the kernel table, by a table that counts and hands on.
thread_local int64_t matmuls = 0, norms = 0, attentions = 0;

KernelTable CountingKernels() {
  KernelTable table = CpuKernels();
  table.matmul = [](const MatmulOp<TensorView>& op, Stream& stream) {
    ++matmuls;
    CpuKernels().matmul(op, stream);
  };
  table.norm = [](const NormOp<TensorView>& op, Stream& stream) {
    ++norms;
    CpuKernels().norm(op, stream);
  };
  table.attention = [](const AttentionOp<TensorView>& op, Stream& stream) {
    ++attentions;
    CpuKernels().attention(op, stream);
  };
  return table;
}

TEST_CASE("recompute runs again what its name says, and saves the bytes of what it dropped") {
  using Recompute = MemoryConfig::Recompute;
  const KernelTable kernels = CountingKernels();
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    int64_t bytes = 0;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kBlock}) {
      Trial trial = MakeBase(family, true, Precision::kFp32, 2, 3).trial;
      trial.config.memory.recompute = recompute;
      trial.kernels = &kernels;
      const int64_t blocks = trial.config.model.layers, microbatches = 3;
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(3);
        matmuls = norms = attentions = 0;
        StepOn(rank, trial.config, 0);
        // Four products per block forward, two for each backward; the head's one and two.
        const bool again = recompute == Recompute::kBlock;
        MR_CHECK_EQ(matmuls, microbatches * (12 * blocks + 3 + (again ? 3 * blocks : 0)),
                    "products");  // the last of a block feeds no gradient
        MR_CHECK_EQ(attentions, microbatches * blocks * (again ? 2 : 1), "attentions");
        MR_CHECK_EQ(
            norms,
            microbatches * (2 * blocks + 1 + (recompute == Recompute::kNone ? 0 : 2 * blocks)),
            "norms");
      });
      const AssembledRun run = Assemble(trial.config, 2, {Backend::kCpu, 0}, {"train"});
      const int64_t now =
          run.plans.Of("train").peak_by_class[static_cast<size_t>(BufferClass::kActivations)];
      if (recompute != Recompute::kNone) REQUIRE(now < bytes);
      bytes = now;
    }
  }
}

}  // namespace
}  // namespace millrace::test
