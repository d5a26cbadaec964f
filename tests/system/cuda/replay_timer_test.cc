// Steps that are replayed with events between the ops, on a GPU: the bits of plain ones, times in
// the order of the plan, and new ones at each replay.
#include "runtime/exec/observe/replay_timer.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <mutex>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

Trial Small(int world, ExecutionConfig::Graph graph) {
  Trial trial = MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16All, world, 2).trial;
  trial.config.model.layers = 2;
  trial.config.execution.graph = graph;
  trial.steps = 6;
  return trial;
}

void RequireOrder(const StepPlan& plan, GraphMode mode, const std::vector<OpSpan>& spans) {
  size_t next = 0;
  std::vector<size_t> first;  // span of each entry's first op
  std::array<double, kStreams> end{};
  for (const Entry& entry : plan.schedule) {
    first.push_back(next);
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops) {
      REQUIRE(next < spans.size());
      const OpSpan& span = spans[next++];
      CAPTURE(op.label, span.begin_ms, span.end_ms);
      REQUIRE(span.label == op.label);
      REQUIRE(span.stream == op.stream);
      REQUIRE(span.begin_ms >= end[static_cast<size_t>(op.stream)]);
      REQUIRE(span.end_ms >= span.begin_ms);
      end[static_cast<size_t>(op.stream)] = span.end_ms;
    }
  }
  REQUIRE(next == spans.size());
  // What waits for an op begins after it has begun.
  for (size_t e = 0; e < plan.schedule.size(); ++e)
    for (const Edge& edge : plan.schedule[e].edges) {
      const OpSpan& from =
          spans[first[static_cast<size_t>(edge.from_entry)] + static_cast<size_t>(edge.from_op)];
      const OpSpan& to = spans[first[e] + static_cast<size_t>(edge.to_op)];
      CAPTURE(from.label, to.label, plan.name, static_cast<int>(mode));
      REQUIRE(to.begin_ms >= from.begin_ms);
    }
}

TEST_CASE("replays with events have the bits of plain ones and times in the order of the plan",
          "[cuda]") {
  for (const int world : {1, 2}) {
    if (!HaveDevices(world)) continue;
    for (const auto graph : {ExecutionConfig::Graph::kStep, ExecutionConfig::Graph::kMicrobatch}) {
      const Trial trial = Small(world, graph);
      const std::string plain = RunTrial(trial).Bits();
      std::string timed;
      std::vector<std::vector<OpSpan>> replays(2);  // of rank 0
      int64_t events = 0;
      std::mutex mutex;
      RunEngines(trial, [&](RankContext& rank) {
        ReplayTimer timer(rank.engine.device());
        rank.engine.ObserveCapture(&timer);
        const Outcome outcome = TrainOnRank(rank, trial);
        timer.SetOrigin(rank.engine.stream(StreamId::kCompute));
        std::vector<std::vector<OpSpan>> mine;
        for (int64_t step = trial.steps; step < trial.steps + 2; ++step) {
          StepOn(rank, trial.config, step);
          mine.push_back(timer.Spans());
        }
        rank.engine.ObserveCapture(nullptr);
        StepOn(rank, trial.config, trial.steps + 2);
        StepOn(rank, trial.config, trial.steps + 3);
        const std::lock_guard lock(mutex);
        if (rank.rank != 0) return;
        timed = outcome.Bits();
        replays = std::move(mine);
        events = timer.events();
      });
      CHECK(timed == plain);
      const AssembledRun run = PlanOf(trial);
      const StepPlan& plan = run.plans.Of("train");
      for (const std::vector<OpSpan>& spans : replays)
        RequireOrder(plan, trial.config.execution.graph, spans);
      const auto ops = static_cast<int64_t>(replays[0].size());
      CHECK(events > ops);
      CHECK(events < 2 * ops);
      double last = 0, longest = 0;
      for (const OpSpan& span : replays[0]) {
        last = std::max(last, span.end_ms);
        longest = std::max(longest, span.end_ms - span.begin_ms);
      }
      CHECK(longest > 0);
      for (const OpSpan& span : replays[1]) REQUIRE(span.begin_ms >= last);
    }
  }
}

}  // namespace
}  // namespace millrace::test
