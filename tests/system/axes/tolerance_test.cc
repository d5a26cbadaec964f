// What differs only in the order or the encoding of sums agrees to a derived tolerance.
//
// Order      u = 2^-24. Two orders of a sum of n terms in f32 differ by at most 2 n u sum|terms|
//            (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). Losses are sums in
//            double of rows whose own arithmetic differs by the shape of GEMMs only: dot products
//            of k <= 53 terms, through 4 blocks of 4 products: 16 * 2 * 53 u = 1e-4 in the worst
//            case, 1e-6 with errors of random sign (sqrt(n) for n). Gradients sum n = 84 rows more.
//            Losses and norms of the first step: 1e-5.
// Later      AdamW divides by sqrt(v) + eps. With eps = 1e-3 above the gradients' rounding errors
//            the update is a smooth function of the gradient, its slope at most lr / eps = 3: an
//            error of 1e-5 |g| with |g| < 0.1 moves a weight by 3e-6 per step at worst, against |w|
//            ~ 0.2, relative 1.5e-5. Losses over 6 steps: 1e-4; norms, which are differences of
//            probabilities and feel it ten times more: 1e-3.
// bf16 wire  Each rank's part and the sum are rounded once to 8 bits: |e| <= 2^-9 (sum_r |g_r| +
//            |g|), element by element, and so for norms. The first loss does not know of it; later
//            ones by |e| / |g| ~ 2^-8 of what a step changes: 1e-2.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

struct Shape {
  int world = 1;
  int64_t replicate = 1, accumulate = 1;
};

Trial TrialOf(ModelConfig::Family family, const Shape& shape) {
  Trial trial = MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kFp32,
                         shape.world, shape.accumulate)
                    .trial;
  trial.config.parallel.replicate = shape.replicate;
  trial.config.train.micro_batch = kGlobalBatch / (shape.world * shape.accumulate);
  trial.config.optimizer.eps = 1e-3;
  trial.steps = 6;
  return trial;
}

TEST_CASE("one global batch on any world, mesh and accumulation") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const Outcome reference = RunTrial(TrialOf(family, {1, 1, 1}));
    for (const Shape& shape : {Shape{1, 1, 3},
                               {1, 1, 12},
                               {2, 1, 1},
                               {2, 2, 1},
                               {2, 1, 3},
                               {3, 1, 1},
                               {3, 1, 4},
                               {3, 3, 2},
                               {4, 1, 1},
                               {4, 1, 3},
                               {4, 2, 1},
                               {4, 2, 3},
                               {4, 4, 1}}) {
      INFO("world " << shape.world << " replicate " << shape.replicate << " accumulate "
                    << shape.accumulate);
      RequireClose(RunTrial(TrialOf(family, shape)), reference);
    }
  }
}

TEST_CASE("reduced every microbatch or at the last") {
  for (const Shape& shape : {Shape{2, 1, 3}, {3, 1, 2}, {4, 1, 3}, {4, 2, 3}}) {
    Trial trial = TrialOf(ModelConfig::Family::kGpt2, shape);
    const Outcome last = RunTrial(trial);
    trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
    const Outcome every = RunTrial(trial);
    RequireClose(every, last);
    REQUIRE(every.counters[0].comm.reduce_scatters ==
            shape.accumulate * last.counters[0].comm.reduce_scatters);
    REQUIRE(every.plan_hash != last.plan_hash);
  }
}

// Norm of the gradient that one rank contributes to step 0: its own rows on one rank, scaled by the
// whole step's tokens.
double NormOfPart(const Trial& trial, int part) {
  Trial alone = trial;
  alone.world = 1;
  alone.config.parallel.replicate = 1;
  double norm = 0;
  RunEngines(alone, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    norm = rank.engine
               .Step(BatchOf(trial.config, trial.world, part, 0), 0,
                     ValidTokens(trial.config, trial.world))
               .grad_norm;
  });
  return norm;
}

TEST_CASE("gradients in bf16 on the wire") {
  for (const Shape& shape : {Shape{2, 1, 1}, {3, 1, 2}, {4, 1, 1}, {2, 2, 1}, {4, 2, 3}}) {
    INFO("world " << shape.world << " replicate " << shape.replicate);
    Trial trial = TrialOf(ModelConfig::Family::kGpt2, shape);
    const Outcome wide = RunTrial(trial);
    trial.config.precision.grad_wire = PrecisionConfig::Format::kBf16;
    const Outcome narrow = RunTrial(trial);
    const double norm = wide.scalars[0].grad_norm;
    double parts = 0;
    for (int rank = 0; rank < shape.world; ++rank) parts += NormOfPart(trial, rank);
    // A mesh of two axes rounds a second time, on what the first axis has summed.
    const double stages = shape.replicate > 1 && shape.replicate < shape.world ? 2 : 1;
    const double bound = stages * std::ldexp(parts + norm, -9) * (1 + 1e-3);
    REQUIRE(narrow.scalars[0].loss == wide.scalars[0].loss);
    REQUIRE(narrow.scalars[0].grad_norm != norm);
    REQUIRE(std::abs(narrow.scalars[0].grad_norm - norm) <= bound);
    for (size_t step = 1; step < wide.scalars.size(); ++step)
      REQUIRE(narrow.scalars[step].loss == Approx(wide.scalars[step].loss).epsilon(1e-2));
    REQUIRE(narrow.plan_hash != wide.plan_hash);
    RequireCounters(trial, narrow);
    const auto bytes = [](const Outcome& o) {
      return o.counters[0].comm.reduced_bytes + o.counters[0].comm.all_reduced_bytes;
    };
    REQUIRE(bytes(narrow) < bytes(wide));
  }
}

}  // namespace
}  // namespace millrace::test
