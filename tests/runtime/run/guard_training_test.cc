// What guards do in the training loop, on in-process ranks: each is provoked by a
// fault, and what the run becomes is computed apart, step by step, from the steps and
// data that it should have trained.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/state_check.h"
#include "runtime/run/faults/train_faults.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/run/training_run.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Kind = TrainFault::Kind;
using test::Killed;
using Run = test::TrainingRun;

// (step, data) for steps first ... last with data `shift` later.
void Add(std::vector<std::pair<int64_t, int64_t>>& steps, int64_t first, int64_t last,
         int64_t shift) {
  for (int64_t step = first; step <= last; ++step) steps.emplace_back(step, step + shift);
}

TEST_CASE("a step that is not finite is undone together with the data since the checkpoint",
          "[guard]") {
  if (!test::HaveDevices(2)) return;
  Run run(2, {"guard.non_finite=roll_back"});
  const std::vector<std::string> warnings =
      run.Train({{7, 1, "h.0", Kind::kNotFinite}, {10, 0, "", Kind::kNotFinite}});
  // From 7 to 4: steps 5 ... read the data of 8 ...; from 10 to 8: steps 9 ... read those of 14 ...
  std::vector<std::pair<int64_t, int64_t>> steps;
  Add(steps, 1, 4, 0);
  Add(steps, 5, 8, 3);
  Add(steps, 9, 12, 5);
  CHECK(run.Hashes() == run.Alone(steps));
  CHECK(warnings ==
        std::vector<std::string>{
            "step 7: gradient of unit h.0 on rank 1: rolled back to step 4; the data of steps 5 "
            "to 7 are left out (1 of 3 roll-backs)",
            "step 10: loss on rank 0: rolled back to step 8; the data of steps 9 to 10 are left "
            "out (2 of 3 roll-backs)"});
  const std::vector<Json> lines = run.Lines();
  REQUIRE(lines.size() == 12);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    CAPTURE(step);
    CHECK(lines[i]["step"] == step);
    CHECK(lines[i]["skipped"] == 0);
    CHECK(lines[i].value("data_step", step) == (step <= 4   ? step
                                                : step <= 8 ? step + 3
                                                            : step + 5));
    CHECK(lines[i].contains("rolled_back") == (step == 5 || step == 9));
  }
  CHECK(lines[4]["rolled_back"] ==
        Json::parse(R"([{"from": 7, "why": "gradient of unit h.0 on rank 1"}])"));
}

TEST_CASE("a run that is stopped as it rolls back tells of the steps that are left", "[guard]") {
  for (const bool saved : {true, false}) {
    CAPTURE(saved);
    Run run(1, {"guard.non_finite=roll_back", saved ? "checkpoint.every=4" : "checkpoint.every=0",
                "train.eval_every=5", "data.eval_batches=1"});
    std::atomic<bool> stop = false;
    run.Train(
        {{7, 0, "", Kind::kNotFinite}}, [&](const StepReport& report) { stop = report.step == 6; },
        &stop);
    const std::vector<Json> lines = run.Lines();
    REQUIRE(lines.size() == (saved ? 4 : 0));
    const Json summary = run.Summary();
    CHECK(summary["preempted"] == true);
    CHECK(summary["first_step"] == 0);
    CHECK(summary["last_step"] == lines.size());
    CHECK(summary["first_loss"] == (saved ? lines.front()["loss"] : Json(nullptr)));
    CHECK(summary["last_loss"] == (saved ? lines.back()["loss"] : Json(nullptr)));
    CHECK(summary["eval_after"] == Json(nullptr));  // what step 5 evaluated is undone
    CHECK(summary["last_loss_bits"] == (saved ? lines.back()["loss_bits"] : Json(nullptr)));
  }
}

TEST_CASE("before there is a checkpoint a run goes back to its beginning", "[guard]") {
  Run run(1, {"guard.non_finite=roll_back", "train.steps=5"});
  run.Train({{2, 0, "", Kind::kNotFinite}});
  std::vector<std::pair<int64_t, int64_t>> steps;
  Add(steps, 1, 5, 2);
  CHECK(run.Hashes() == run.Alone(steps));
  Run plain(1, {"train.steps=5"});
  plain.Train();
  // What was undone was not done; but what it captured is there, so that a GPU launches one graph
  // more.
  const auto counters = [](const Run& of) {
    Json all = of.Summary()["counters"];
    all.erase("graph_launches");
    return all;
  };
  CHECK(counters(run) == counters(plain));
  const Json summary = run.Summary();
  CHECK(summary["measured"]["counters"]["graph_launches"] ==
        summary["predicted"]["counters"]["graph_launches"]);
}

TEST_CASE("a loss spike is skipped, or undone, on all ranks", "[guard]") {
  if (!test::HaveDevices(2)) return;
  const bool undone = GENERATE(false, true);
  CAPTURE(undone);
  Run run(2, {undone ? "guard.loss_spike=roll_back" : "guard.loss_spike=skip",
              "guard.spike_window=4", "guard.spike_factor=10", "train.steps=24"});
  const std::vector<std::string> warnings = run.Train({{22, 1, "", Kind::kTokens}});
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::StartsWith(undone ? "step 22: loss " : "step 22: a spike: loss "));
  std::vector<std::pair<int64_t, int64_t>> steps;
  Add(steps, 1, undone ? 20 : 21, 0);
  Add(steps, undone ? 21 : 23, 24, undone ? 2 : 0);
  CHECK(run.Hashes() == run.Alone(steps));
  const std::vector<Json> lines = run.Lines();
  for (const Json& line : lines) CHECK(line.contains("max_loss") == (line["step"] >= 6));
  CHECK(lines[23]["skipped"] == (undone ? 0 : 1));
  if (!undone) CHECK(lines[21]["loss"] > lines[21]["max_loss"]);
}

TEST_CASE("stopped, or killed at any step, and resumed, a guarded run is the one that was not",
          "[guard]") {
  const std::vector<std::string> sets = {"guard.non_finite=roll_back", "guard.loss_spike=skip",
                                         "guard.spike_window=3", "guard.spike_factor=4"};
  const std::vector<TrainFault> faults = {{7, 0, "h.1", Kind::kNotFinite},
                                          {11, 0, "", Kind::kTokens}};
  Run whole(1, sets);
  whole.Train(faults);
  REQUIRE(whole.Lines().size() == 12);
  REQUIRE(whole.Lines()[4].contains("rolled_back"));
  REQUIRE(whole.Lines()[11]["skipped"] == 1);
  for (const bool kill : {false, true})
    for (const int64_t step : {2, 3, 5, 6, 8, 9, 10}) {
      // A GPU has two steps in flight when it is asked to stop at 3, and so saves step 5, to which
      // the roll-back at 7 would go: another run, and a right one.
      if (!kill && step == 3 && test::TestRanks().captures()) continue;
      CAPTURE(kill, step);
      Run parts(1, sets);
      // What has happened does not happen again. Steps 5 and 6 come twice; the
      // second time is what counts.
      std::vector<TrainFault> later = faults;
      std::atomic<bool> stop = false;
      bool rolled_back = false, ended = false;
      const auto on_step = [&](const StepReport& report) {
        std::erase_if(later, [&](const TrainFault& f) { return f.step == report.step; });
        rolled_back |= report.step == 7;
        if (ended || report.step != step || (step > 4 && !rolled_back)) return;
        ended = true;
        if (kill) throw Killed();
        stop = true;
      };
      try {
        parts.Train(faults, on_step, &stop);
      } catch (const Killed&) {
      }
      REQUIRE(ended);
      parts.Train(later);
      CHECK(parts.Hashes() == whole.Hashes());
      CHECK(parts.Lines() == whole.Lines());
    }
}

TEST_CASE("all ranks go on from a roll-back that no checkpoint has yet", "[guard]") {
  if (!test::HaveDevices(2)) return;
  // A rank that is killed as a thread leaves its GPU to the others; what is tested
  // does not depend on devices.
  if (test::TestRanks().captures()) return;
  const std::vector<std::string> sets = {"guard.non_finite=roll_back"};
  Run whole(2, sets), parts(2, sets);
  whole.Train({{7, 1, "h.1", Kind::kNotFinite}});
  bool rolled_back = false;
  try {
    parts.Train({{7, 1, "h.1", Kind::kNotFinite}}, [&](const StepReport& report) {
      if (rolled_back && report.step == 6) throw Killed();
      rolled_back |= report.step == 7;
    });
    FAIL("it was not killed");
  } catch (const Killed&) {
  }
  parts.Train();
  CHECK(parts.Hashes() == whole.Hashes());
  CHECK(parts.Lines() == whole.Lines());
}

TEST_CASE("an overflow in fp16 is counted and skipped, and no guard acts", "[guard][fp16]") {
  if (!test::HaveDevices(2)) return;
  const std::vector<std::string> sets = {
      "precision.compute=fp16", "precision.loss_scale.init_scale=4096",
      "precision.loss_scale.growth_interval=4", "guard.non_finite=stop", "train.steps=12"};
  Run run(2, sets), parts(2, sets);
  const TrainFault overflow{7, 1, "h.0", Kind::kNotFinite};
  CHECK(run.Train({overflow}).empty());  // no warning
  const std::vector<Json> lines = run.Lines();
  REQUIRE(lines.size() == 12);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    CAPTURE(step);
    CHECK(lines[i]["step"] == step);
    CHECK(lines[i].value("data_step", step) == step);
    // Doubled after 4 updates, halved by step 7, doubled again after steps 8 to 11.
    CHECK(lines[i]["loss_scale"] == (step <= 4    ? 4096
                                     : step <= 7  ? 8192
                                     : step <= 11 ? 4096
                                                  : 8192));
    CHECK(lines[i]["scale_downs"] == (step < 7 ? 0 : 1));
    CHECK(lines[i]["skipped"] == (step < 7 ? 0 : 1));
    CHECK(lines[i].contains("offender") == (step == 7));
  }
  CHECK(lines[6]["offender"] == "overflow at a loss scale of 8192: gradient of unit h.0 on rank 1");
  // Saved behind step 8, with the scale: what follows is the same.
  std::atomic<bool> stop = false;
  parts.Train(
      {overflow}, [&](const StepReport& report) { stop = report.step == 8; }, &stop);
  parts.Train();
  CHECK(parts.Hashes() == run.Hashes());
  CHECK(parts.Lines() == run.Lines());

  Run plain(1, {"train.steps=2"});
  plain.Train();
  CHECK_FALSE(plain.Lines().back().contains("loss_scale"));
}

TEST_CASE("a run that may not go on stops with the reason, and its checkpoint stays", "[guard]") {
  if (!test::HaveDevices(2)) return;
  Run run(2, {"guard.non_finite=stop"});
  RequireError(ErrorCode::kNonFinite,
               {"step 7: non-finite gradient of unit h.1 on rank 1; guard.non_finite is stop"},
               [&] {
                 run.Train({{7, 1, "h.1", Kind::kNotFinite}});
               });
  const std::vector<Json> lines = run.Lines();
  REQUIRE(lines.size() == 7);
  CHECK(lines[6]["offender"] == "gradient of unit h.1 on rank 1");
  int64_t first = 0;
  run.Train({}, [&](const StepReport& report) { first = first == 0 ? report.step : first; });
  CHECK(first == 5);  // from step 4's
  std::vector<std::pair<int64_t, int64_t>> steps;
  Add(steps, 1, 12, 0);
  CHECK(run.Hashes() == run.Alone(steps));
}

TEST_CASE("roll-backs come to an end", "[guard]") {
  Run run(1, {"guard.non_finite=roll_back", "guard.max_roll_backs=1"});
  RequireError(ErrorCode::kNonFinite, {"step 7: non-finite loss on rank 0", "1 were made already"},
               [&] {
                 run.Train({{5, 0, "", Kind::kNotFinite}, {7, 0, "", Kind::kNotFinite}});
               });
}

TEST_CASE("replicas that differ by one bit stop the run, with ranks and unit", "[guard]") {
  if (!test::HaveDevices(4)) return;
  const std::vector<std::string> sets = {"guard.replicas_every=3", "parallel.replicate=2"};
  Run sound(4, sets);
  sound.Train();
  CHECK(sound.Lines().size() == 12);
  Run run(4, sets);
  RequireError(
      ErrorCode::kNonFinite,
      {"after step 6: rank 3 and rank 1 are replicas, but their master weights of unit h.1 differ"},
      [&] {
        run.Train({{4, 3, "h.1", Kind::kFlip}});
      });
}

TEST_CASE("a replica is told by any of its values, and by what most of the others hold",
          "[guard]") {
  struct Case {
    std::string_view kind;
    std::string name;
    int spoilt;  // rank
    std::string who;
  };
  if (!test::HaveDevices(3)) return;
  for (const Case& c : {Case{"master", "master weights", 2, "rank 2 and rank 0"},
                        {"adam_m", "first moments", 1, "rank 1 and rank 0"},
                        {"adam_v", "second moments", 0, "rank 0 and rank 1"}}) {
    CAPTURE(c.name);
    const Config config = Run(3, {"parallel.replicate=3"}).config();
    std::vector<std::string> said(3);
    test::TestRanks().Run(3, [&](const test::RankSetup& setup) {
      Session session(config, setup.environment(), {{"train"}, false});
      session.InitWeights();
      Engine& engine = session.engine();
      const FlatId flat{1};
      std::vector<float> shard = engine.ReadShard(c.kind, flat);
      if (session.rank() == c.spoilt) shard.back() += 1;
      engine.WriteShard(c.kind, flat, shard);
      said[static_cast<size_t>(session.rank())] = DifferingReplicas(engine);
    });
    for (const std::string& text : said)
      CHECK(text == c.who + " are replicas, but their " + c.name + " of unit h.0 differ");
  }
}

TEST_CASE("a step that is run twice counts once, and tells a bit that flipped in one run",
          "[guard]") {
  if (!test::HaveDevices(2)) return;
  Run plain(2, {}), twice(2, {"guard.rerun_every=3"});
  plain.Train();
  twice.Train();
  CHECK(twice.Hashes() == plain.Hashes());
  CHECK(twice.Summary()["counters"] == plain.Summary()["counters"]);
  CHECK(twice.Lines() == plain.Lines());
  Run run(2, {"guard.rerun_every=3"});
  RequireError(ErrorCode::kNonFinite,
               {"step 6, run twice from the same state, gave two results", ": loss 4.4",
                "; other master weights of unit embed, on every rank"},
               [&] {
                 run.Train({{6, 1, "h.0", Kind::kFlip}});
               });
}

// Of a data rank of two ranks. With tensor a replica's other half has other weights.
TEST_CASE("guards are silent about sound runs of split models, and name rank and unit of others",
          "[guard]") {
  if (!test::HaveDevices(4)) return;
  for (const std::string split : {"parallel.tensor=2", "parallel.context=2"}) {
    CAPTURE(split);
    const std::vector<std::string> plain = {split, "parallel.replicate=2"};
    std::vector<std::string> guarded = plain;
    for (const char* set : {"guard.replicas_every=2", "guard.rerun_every=3", "guard.order_every=2"})
      guarded.push_back(set);
    Run bare(4, plain), sound(4, guarded);
    bare.Train();
    CHECK(sound.Train().empty());
    CHECK(sound.Lines() == bare.Lines());
    CHECK(sound.Hashes() == bare.Hashes());
    Run flipped(4, guarded);
    RequireError(ErrorCode::kNonFinite,
                 {"after step 4: rank 3 and rank 1 are replicas, but their master weights of unit "
                  "h.1 differ"},
                 [&] {
                   flipped.Train({{4, 3, "h.1", Kind::kFlip}});
                 });
    Run undone(4, {split, "parallel.replicate=2", "guard.non_finite=roll_back"});
    const std::vector<std::string> warnings = undone.Train({{7, 2, "h.0", Kind::kNotFinite}});
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0],
               Catch::StartsWith("step 7: gradient of unit h.0 on rank 2: rolled back to step 4"));
    std::vector<std::pair<int64_t, int64_t>> steps;
    Add(steps, 1, 4, 0);
    Add(steps, 5, 12, 3);
    CHECK(undone.Hashes() == undone.Alone(steps));
  }
}

TEST_CASE(
    "a rank that swaps two gathers of one size is told at the next comparison, or before a "
    "checkpoint",
    "[guard]") {
  if (!test::HaveDevices(2)) return;
  const std::vector<TrainFault> faults = {{3, 1, "h.0", Kind::kSwap}};
  Run unwatched(2, {});
  unwatched.Train(faults);  // nobody hangs, nobody notices
  CHECK(unwatched.Lines().size() == 12);
  Run sound(2, {"guard.order_every=2"});
  sound.Train();
  CHECK(sound.Lines().size() == 12);
  const std::string what = GENERATE("guard.order_every=2", "guard.order_every=1000");
  CAPTURE(what);
  Run run(2, {what});
  RequireError(
      ErrorCode::kNonFinite,
      {"after step 4: rank 1 has issued other collectives than rank 0 on the communicator 'shard "
       "gather': call ",
       "is all_gather of unit h.1 (", " of step 3), and all_gather of unit h.0 ("},
      [&] { run.Train(faults); });
}

}  // namespace
}  // namespace millrace
