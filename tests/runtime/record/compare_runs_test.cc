// Two runs side by side, on values made by hand.
#include "runtime/record/compare_runs.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Ulps(float value, int32_t ulps) {  // value > 0
  return std::bit_cast<float>(std::bit_cast<int32_t>(value) + ulps);
}

// Steps 1 to n with loss 8 - step/4 and norm 1 + step/8.
RecordedRun Run(int64_t n) {
  RecordedRun run;
  for (int64_t step = 1; step <= n; ++step)
    run.metrics.steps[step] = {
        8 - static_cast<float>(step) / 4, 1 + static_cast<float>(step) / 8, {}, ""};
  run.summary = {
      {n,
       {{"param_hash", "p"}, {"optimizer_hash", "o"}, {"plan_hash", "q"}, {"tuning_hash", ""}},
       {}}};
  RecordedCall call;
  call.world = 2;
  call.backend = "cpu";
  call.keys = {{"optimizer.lr", {"0.01", "a.json:3"}}, {"run.dir", {"\"runs/a\"", "a.json:9"}}};
  for (const std::string_view name : kPlanStageNames) call.plan_stages[std::string(name)] = "1";
  run.history = {call};
  return run;
}

TEST_CASE("ulps are steps to the next float32, across zero too, and none to a NaN", "[compare]") {
  const float tiny = std::numeric_limits<float>::denorm_min(),
              max = std::numeric_limits<float>::max();
  CHECK(UlpsBetween(1.5f, 1.5f) == 0);
  CHECK(UlpsBetween(1.0f, Ulps(1.0f, 3)) == 3);
  CHECK(UlpsBetween(Ulps(2.0f, -2), Ulps(2.0f, 1)) == 3);  // over a power of two
  CHECK(UlpsBetween(-1.0f, -Ulps(1.0f, 5)) == 5);
  CHECK(UlpsBetween(-0.0f, 0.0f) == 0);
  CHECK(UlpsBetween(-tiny, 2 * tiny) == 3);
  CHECK(UlpsBetween(max, kInfinity) == 1);
  CHECK(UlpsBetween(-kInfinity, kInfinity) == 2 * int64_t{0x7f800000});
  CHECK_FALSE(UlpsBetween(kNan, 1.0f).has_value());
  CHECK_FALSE(UlpsBetween(kNan, kNan).has_value());
}

TEST_CASE("a run is the same as itself, wherever it lies", "[compare]") {
  RecordedRun other = Run(5);
  other.history[0].keys["run.dir"] = {"\"runs/b\"", "--set"};
  other.history[0].keys["optimizer.lr"].origin = "--set";
  const RunComparison c = CompareRuns(Run(5), other);
  CHECK(c.same());
  CHECK(c.same_results());
  CHECK(c.loss.common == 5);
  CHECK(c.keys_known);
  CHECK(c.keys.empty());
  CHECK(c.stages_known);
  CHECK(c.stages.empty());
}

TEST_CASE("the first differing step is found by bits, with ulps and the growth after it",
          "[compare]") {
  const RecordedRun a = Run(40);
  RecordedRun b = a;
  for (int64_t step = 7; step <= 40; ++step) {
    if (step == 9) continue;  // equal again, once
    float& loss = b.metrics.steps[step].loss;
    loss = Ulps(loss, static_cast<int32_t>(step - 6));
  }
  b.metrics.steps.erase(17);  // 10 steps later: the next that both have stands for it
  const RunComparison c = CompareRuns(a, b);
  CHECK_FALSE(c.same());
  CHECK(c.loss.common == 39);
  CHECK(c.loss.differing == 32);
  REQUIRE(c.loss.first);
  CHECK(c.loss.first->step == 7);
  CHECK(c.loss.first->ulps == 1);
  CHECK(c.loss.first->a == 6.25f);
  CHECK(c.loss.first->difference() == std::ldexp(1.0, -21));  // an ulp in [4, 8)
  std::vector<std::pair<int64_t, int64_t>> growth;
  for (const ValuePair& pair : c.loss.growth) growth.emplace_back(pair.step, pair.ulps.value());
  CHECK(growth == std::vector<std::pair<int64_t, int64_t>>{{8, 2}, {18, 12}, {40, 34}});
  CHECK_FALSE(c.grad_norm.first);
  CHECK(c.grad_norm.common == 39);
}

TEST_CASE("a difference in the last common step has no growth", "[compare]") {
  RecordedRun b = Run(3);
  b.metrics.steps[3].grad_norm = Ulps(b.metrics.steps[3].grad_norm, -4);
  const RunComparison c = CompareRuns(Run(3), b);
  REQUIRE(c.grad_norm.first);
  CHECK(c.grad_norm.first->step == 3);
  CHECK(c.grad_norm.first->ulps == 4);
  CHECK(c.grad_norm.first->difference() < 0);
  CHECK(c.grad_norm.growth.empty());
  CHECK(c.same());  // what counts is the losses and what the run ended with
}

TEST_CASE("a NaN differs from a number without ulps; losses that are NaN differ by their bits",
          "[compare]") {
  RecordedRun a = Run(4), b = Run(4);
  a.metrics.steps[2] = {kNan, kNan, {}, "loss on rank 1"};
  SECTION("from a number") {
    const RunComparison c = CompareRuns(a, b);
    REQUIRE(c.loss.first);
    CHECK(c.loss.first->step == 2);
    CHECK_FALSE(c.loss.first->ulps.has_value());
    CHECK(std::isnan(c.loss.first->difference()));
    CHECK(c.grad_norm.first->step == 2);
    REQUIRE(c.skipped_a.size() == 1);
    CHECK(c.skipped_a[0].step == 2);
    CHECK(c.skipped_a[0].offender == "loss on rank 1");
    CHECK(c.skipped_b.empty());
  }
  SECTION("from the same NaN: not at all") {
    b.metrics.steps[2] = a.metrics.steps[2];
    CHECK(CompareRuns(a, b).same());
  }
  SECTION("from a NaN of other bits, which only losses record") {
    b.metrics.steps[2] = a.metrics.steps[2];
    b.metrics.steps[2].loss = b.metrics.steps[2].grad_norm = std::bit_cast<float>(0xffc00000u);
    const RunComparison c = CompareRuns(a, b);
    REQUIRE(c.loss.first);
    CHECK_FALSE(c.loss.first->ulps.has_value());
    CHECK_FALSE(c.grad_norm.first);
  }
}

TEST_CASE(
    "an update that one run alone skipped is a difference, also after the last step of killed runs",
    "[compare]") {
  RecordedRun a = Run(4), b = Run(4);
  a.summary = b.summary = std::nullopt;
  CHECK(CompareRuns(a, b).same());
  SECTION("a skip, whose loss is the same") {
    b.metrics.steps[4].offender = "loss above limit";
    const RunComparison c = CompareRuns(a, b);
    CHECK_FALSE(c.same_skips());
    CHECK_FALSE(c.same_results());
    a.metrics.steps[4].offender = "gradient of unit h.0 on rank 1";  // the update of the same step
    CHECK(CompareRuns(a, b).same());
  }
  SECTION("a norm, of which no hash tells") {
    b.metrics.steps[4].grad_norm = Ulps(b.metrics.steps[4].grad_norm, 1);
    CHECK_FALSE(CompareRuns(a, b).same_results());
    a.summary = b.summary = Run(4).summary;
    CHECK(CompareRuns(a, b).same());
  }
}

TEST_CASE("two runs without a step are not the same run", "[compare]") {
  RecordedRun none = Run(0);
  CHECK(CompareRuns(none, none).same());  // by their hashes
  none.summary = std::nullopt;
  CHECK_FALSE(CompareRuns(none, none).same_results());
}

TEST_CASE("roll-backs are told with the step that they went to", "[compare]") {
  RecordedRun b = Run(4);
  b.metrics.steps[3].rolled_back = {{4, "loss on rank 1"}, {3, "spike"}};
  const RunComparison c = CompareRuns(Run(4), b);
  CHECK(c.rolled_back_a.empty());
  REQUIRE(c.rolled_back_b.size() == 2);
  CHECK(c.rolled_back_b[0].step == 3);
  CHECK(c.rolled_back_b[0].from == 4);
  CHECK(c.rolled_back_b[1].why == "spike");
}

TEST_CASE("held-out losses count where both runs have them", "[compare]") {
  RecordedRun a = Run(6), b = Run(6);
  a.metrics.steps[2].eval_loss = 3;
  a.metrics.steps[4].eval_loss = b.metrics.steps[4].eval_loss = 2.5f;
  b.metrics.steps[6].eval_loss = 7;
  CHECK(CompareRuns(a, b).eval_loss.common == 1);
  CHECK(CompareRuns(a, b).same());
  b.metrics.steps[4].eval_loss = Ulps(2.5f, 2);
  CHECK(CompareRuns(a, b).eval_loss.first->ulps == 2);
  CHECK_FALSE(CompareRuns(a, b).same_results());
}

TEST_CASE("steps that one run alone has are ranges, and a difference", "[compare]") {
  RecordedRun a = Run(9), b = Run(12);
  for (const int64_t step : {1, 2, 5}) b.metrics.steps.erase(step);
  const RunComparison c = CompareRuns(a, b);
  CHECK(c.only_a == std::vector<StepRange>{{1, 2}, {5, 5}});
  CHECK(c.only_b == std::vector<StepRange>{{10, 12}});
  CHECK(c.loss.common == 6);
  CHECK_FALSE(c.loss.first);
  CHECK_FALSE(c.same_results());
  // No step in common.
  CHECK(CompareRuns(RecordedRun(), a).loss.common == 0);
  CHECK(CompareRuns(RecordedRun(), a).only_b == std::vector<StepRange>{{1, 9}});
}

TEST_CASE("each final hash counts; those of plan and tuning are no results", "[compare]") {
  for (const std::string_view name : kFinalHashNames) {
    CAPTURE(name);
    RecordedRun b = Run(2);
    b.summary->hashes[std::string(name)] = "other";
    const RunComparison c = CompareRuns(Run(2), b);
    CHECK_FALSE(c.same());
    CHECK(c.same_results() == (name == "plan_hash" || name == "tuning_hash"));
    for (const HashComparison& hash : c.hashes) CHECK(hash.equal() == (hash.name != name));
  }
  RecordedRun killed = Run(2);
  killed.summary.reset();
  CHECK_FALSE(CompareRuns(Run(2), killed).same());
  CHECK_FALSE(CompareRuns(killed, Run(2)).hashes[0].known());
  CHECK(CompareRuns(killed, killed).same());
}

TEST_CASE("keys differ by value and by when they changed, not by origin", "[compare]") {
  const RecordedRun a = Run(8);
  RecordedRun b = a;
  b.history[0].keys["model.layers"] = {"3", "b.json:2"};
  RecordedCall later = b.history[0];
  later.step = 4;
  later.world = 3;
  later.keys["optimizer.lr"] = {"0.02", "--set"};
  later.plan_stages["schedule"] = "2";
  b.history.push_back(later);
  const RunComparison c = CompareRuns(a, b);
  REQUIRE(c.keys.size() == 3);
  CHECK(c.keys[0].name == "model.layers");
  CHECK(c.keys[0].a.empty());
  CHECK(c.keys[0].b == std::vector<ValueFrom>{{0, "3", "b.json:2"}});
  CHECK(c.keys[1].name == "optimizer.lr");
  CHECK(c.keys[1].a == std::vector<ValueFrom>{{0, "0.01", "a.json:3"}});
  CHECK(c.keys[1].b == std::vector<ValueFrom>{{0, "0.01", "a.json:3"}, {4, "0.02", "--set"}});
  CHECK(c.keys[2].name == "world");
  REQUIRE(c.stages.size() == 1);
  CHECK(c.stages[0].name == "schedule");
  CHECK(c.stages[0].a == std::vector<ValueFrom>{{0, "1", ""}});
  CHECK(c.stages[0].b == std::vector<ValueFrom>{{0, "1", ""}, {4, "2", ""}});
  CHECK(c.same());  // made differently, and yet the same
  // Changed to the same, but at another step.
  RecordedRun sooner = b;
  sooner.history[1].step = 3;
  CHECK(CompareRuns(b, sooner).keys.size() == 2);
}

TEST_CASE("environments are compared for people, and are no difference between runs", "[compare]") {
  const auto on = [](const std::string& mpi, const std::string& own) {
    return std::vector<std::pair<std::string, std::string>>{
        {"host", own}, {"started", own}, {"command", own}, {"device", "Xeon"}, {"MPI", mpi}};
  };
  RecordedRun a = Run(5), b = Run(5);
  CHECK_FALSE(CompareRuns(a, b).environment_known);
  a.history[0].environment = on("4.1.4", "Monday");
  CHECK_FALSE(CompareRuns(a, b).environment_known);
  CHECK(CompareRuns(a, b).environment.empty());
  CHECK(CompareRuns(a, b).same());
  b.history[0].environment = on("4.1.4", "Friday");
  CHECK(CompareRuns(a, b).environment_known);
  CHECK(CompareRuns(a, b).environment.empty());

  b.history[0].environment = on("5.0.0", "Friday");
  b.history[0].environment.emplace_back("NCCL", "2.28.9");
  RunComparison c = CompareRuns(a, b);
  CHECK(c.same());
  CHECK(c.keys.empty());
  REQUIRE(c.environment.size() == 2);
  CHECK(c.environment[0].name == "MPI");
  CHECK(c.environment[0].a == std::vector<ValueFrom>{{0, "4.1.4", ""}});
  CHECK(c.environment[0].b == std::vector<ValueFrom>{{0, "5.0.0", ""}});
  CHECK(c.environment[1].name == "NCCL");
  CHECK(c.environment[1].a.empty());

  // Of resumed runs the values count, not the steps.
  const auto resume = [&](RecordedRun& run, int64_t step, const std::string& mpi) {
    run.history.push_back(run.history.back());
    run.history.back().step = step;
    run.history.back().environment = on(mpi, "later");
  };
  b = a;
  resume(b, 2, "4.1.4");
  CHECK(CompareRuns(a, b).environment.empty());
  resume(b, 3, "5.0.0");
  c = CompareRuns(a, b);
  REQUIRE(c.environment.size() == 1);
  CHECK(c.environment[0].b == std::vector<ValueFrom>{{0, "4.1.4", ""}, {3, "5.0.0", ""}});
  resume(a, 4, "5.0.0");
  CHECK(CompareRuns(a, b).environment.empty());
}

TEST_CASE("without config.json keys are not known; stages are where summary.json has them",
          "[compare]") {
  RecordedRun old = Run(3);
  old.history.clear();
  CHECK_FALSE(CompareRuns(Run(3), old).keys_known);
  CHECK_FALSE(CompareRuns(Run(3), old).stages_known);
  old.summary->plan_stages = Run(3).history[0].plan_stages;
  CHECK(CompareRuns(Run(3), old).stages_known);
  CHECK(CompareRuns(Run(3), old).stages.empty());
  old.summary->plan_stages["layout"] = "2";
  CHECK(CompareRuns(Run(3), old).stages.at(0).name == "layout");
}

TEST_CASE("the first differing line", "[compare]") {
  const LineDifference middle = FirstDifferingLine("one\ntwo\nthree\n", "one\n2\nthree\n");
  CHECK((middle.line == 2 && middle.a == "two" && middle.b == "2"));
  const LineDifference longer = FirstDifferingLine("one\n", "one\ntwo\n");
  CHECK((longer.line == 2 && longer.a.empty() && longer.b == "two"));
  CHECK(FirstDifferingLine("one\n", "one\n").line == 0);
}

}  // namespace
}  // namespace millrace
