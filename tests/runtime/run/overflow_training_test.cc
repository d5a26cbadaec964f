// Batches that receive buffers have no room for, in the training loop: which steps run them again,
// and that the run is the one whose buffers have room for all, of the steps that were applied.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/run/training_run.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using test::TrainingRun;

// Two of eight experts for each of 32 rows per rank, of which each piece has room for `capacity`
// times 32. Loads are uneven enough for some steps to have too many.
std::vector<std::string> Sets(const std::string& capacity) {
  return {
      "model.family=qwen3_moe", "model.moe.experts=8",    "model.moe.top_k=2",
      "model.moe.ffn=8",        "parallel.expert=2",      "train.steps=20",
      "checkpoint.every=5",     "optimizer.moments=bf16", "model.moe.receive_capacity=" + capacity};
}

struct Done {
  std::vector<std::pair<int64_t, int64_t>> applied;  // (step, data step)
  int64_t overflown = 0, again = 0, waiting = 0;
};

// What the lines should say of which data each step has read, given which of them have overflown:
// the rule of guard.h, apart.
Done Follow(const std::vector<Json>& lines) {
  Done done;
  std::deque<std::pair<int64_t, int64_t>> list;
  int64_t next = 1;
  for (const Json& line : lines) {
    const int64_t step = line["step"];
    CAPTURE(step);
    const bool again = !list.empty() && list.front().first <= step - 2;
    const int64_t data = again ? list.front().second : next++;
    if (again) list.pop_front();
    CHECK(line.value("data_step", step) == data);
    CHECK(line.contains("again") == again);
    const bool overflown = line.contains("offender");
    CHECK((line["dropped_pairs"] > 0) == overflown);
    CHECK_FALSE((again && overflown));
    if (overflown) {
      CHECK_THAT(line["offender"].get<std::string>(),
                 Catch::StartsWith("no room for " + line["dropped_pairs"].dump()) ||
                     Catch::Contains(", "));
      CHECK_THAT(line["offender"].get<std::string>(),
                 Catch::Contains("pairs of token and expert in h."));
      list.emplace_back(step, data);
    } else {
      done.applied.emplace_back(step, data);
    }
    CHECK(line.value("waiting_batches", int64_t{0}) == static_cast<int64_t>(list.size()));
    done.overflown += overflown;
    done.again += again;
    CHECK(line["skipped"] == done.overflown);
  }
  done.waiting = static_cast<int64_t>(list.size());
  return done;
}

TEST_CASE("a batch without room is a step of its own later, and no batch is lost",
          "[expert][guard]") {
  if (!test::HaveDevices(2)) return;
  const TrainingRun run(2, Sets("1.2")), roomy(2, Sets("null"));
  const std::vector<std::string> warnings = run.Train();
  const std::vector<Json> lines = run.Lines();
  REQUIRE(lines.size() == 20);
  const Done done = Follow(lines);
  CHECK(done.overflown >= 3);
  CHECK(done.again >= 2);
  CHECK(done.applied.size() > static_cast<size_t>(done.again));
  CHECK(done.overflown == done.again + done.waiting);
  // Steps that were skipped leave nothing behind but their number.
  CHECK(run.Hashes() == roomy.Alone(done.applied));
  const Json summary = run.Summary();
  CHECK(summary.value("waiting_batches", int64_t{0}) == done.waiting);
  CHECK(summary["measured"]["counters"] == summary["predicted"]["counters"]);
  CHECK(std::ssize(warnings) == done.overflown + (done.waiting > 0));
  for (int64_t i = 0; i < done.overflown; ++i)
    CHECK_THAT(warnings[static_cast<size_t>(i)], Catch::Contains("the batch will run again"));
}

TEST_CASE("with room enough a run is the one with room for all, line by line", "[expert][guard]") {
  if (!test::HaveDevices(2)) return;
  TrainingRun run(2, Sets("1")), roomy(2, Sets("null"));
  // Loads that are even need no more room than that.
  for (TrainingRun* each : {&run, &roomy}) each->Set("model.moe.gate=balanced");
  CHECK(run.Train().empty());
  CHECK(roomy.Train().empty());
  CHECK(run.Lines() == roomy.Lines());
  CHECK(run.Hashes() == roomy.Hashes());
  CHECK(run.Summary()["measured"]["wire_bytes"] < roomy.Summary()["measured"]["wire_bytes"]);
}

TEST_CASE("a run that stops or is killed while batches wait goes on with them", "[expert][guard]") {
  if (!test::HaveDevices(2)) return;
  const TrainingRun whole(2, Sets("1.2"));
  whole.Train();
  const std::vector<Json> lines = whole.Lines();
  int64_t waited = 0;
  for (const int64_t step : {2, 5, 6, 10, 11, 13, 15}) {
    const bool kill = step % 2 == 1;
    if (!kill && test::TestRanks().captures()) continue;  // it saves a later step
    CAPTURE(step, kill);
    waited +=
        lines[static_cast<size_t>(kill ? step / 5 * 5 : step) - 1].contains("waiting_batches");
    const TrainingRun parts(2, Sets("1.2"));
    std::atomic<bool> stop = false;
    try {
      parts.Train(
          {},
          [&](const StepReport& report) {
            if (report.step != step) return;
            // Rank 0 alone is gone; the others hear of it.
            if (kill) throw test::Killed();
            stop = true;
          },
          &stop);
    } catch (const test::Killed&) {
    }
    parts.Train();
    CHECK(parts.Hashes() == whole.Hashes());
    CHECK(parts.Lines() == lines);
  }
  CHECK(waited >= 2);
}

TEST_CASE("batches that wait are run by a later call, whatever room it has", "[expert][guard]") {
  if (!test::HaveDevices(2)) return;
  for (const int64_t steps : {6, 8}) {
    CAPTURE(steps);
    TrainingRun run(2, Sets("1.2"));
    run.Set("train.steps=" + std::to_string(steps));
    run.Train();
    const int64_t waiting = Follow(run.Lines()).waiting;
    run.Set("train.steps=" + std::to_string(steps + 6));
    run.Set("model.moe.receive_capacity=null");
    run.Train();
    const Done done = Follow(run.Lines());
    CHECK(done.overflown == done.again);
    CHECK(done.waiting == 0);
    CHECK(waiting > 0);
    const TrainingRun roomy(2, Sets("null"));
    CHECK(run.Hashes() == roomy.Alone(done.applied));
  }
}

}  // namespace
}  // namespace millrace
