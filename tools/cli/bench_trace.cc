#include "tools/cli/bench_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/base/quantile.h"
#include "runtime/data/file_system.h"
#include "runtime/exec/op_timer.h"
#include "runtime/exec/replay_timer.h"

namespace millrace {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

json NameOf(int rank, int stream, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", stream}, {"name", what}, {"args", {{"name", name}}}};
}

json EventsOf(int rank, const std::vector<OpSpan>& spans, double origin_ms) {
  json events = json::array({NameOf(rank, 0, "process_name", "rank " + std::to_string(rank))});
  for (int s = 0; s < kStreams; ++s)
    events.push_back(NameOf(rank, s, "thread_name", std::string(Name(static_cast<StreamId>(s)))));
  for (const OpSpan& span : spans)
    events.push_back({{"ph", "X"},
                      {"pid", rank},
                      {"tid", static_cast<int>(span.stream)},
                      {"name", span.label},
                      {"cat", span.kind},
                      {"ts", 1e3 * (origin_ms + span.begin_ms)},
                      {"dur", 1e3 * (span.end_ms - span.begin_ms)}});
  return events;
}

// When the first rank of this rank's host left a barrier that all ranks left about then. Processes of one
// host have one steady clock.
Clock::time_point CommonZero(Communicator& world) {
  world.Barrier();
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  const auto now = Clock::now();
  const json mine = {{"host", name}, {"ns", now.time_since_epoch() / std::chrono::nanoseconds(1)}};
  for (const std::string& text : world.HostAllGather(mine.dump())) {
    const json of_rank = json::parse(text);
    if (of_rank["host"] == name)
      return Clock::time_point(std::chrono::nanoseconds(of_rank["ns"].get<int64_t>()));
  }
  return now;
}

// Steps that are timed as steps, with the events in them, before one is traced.
constexpr int64_t kTimedSteps = 5;
// Eager steps make their events in the first; of replayed ones the first is issued, the second captures.
constexpr int64_t kFirstSteps = 2;

// What times the ops of an engine's steps from now on, until its end, in one of the two ways.
class StepTimer {
 public:
  explicit StepTimer(Engine& engine)
      : engine_(engine),
        eager_(engine.device(), [this](StreamId id) -> Stream& { return engine_.stream(id); }),
        replay_(engine.device()) {
    if (engine_.replays())
      engine_.ObserveCapture(&replay_);
    else
      engine_.Observe(&eager_);
  }
  ~StepTimer() {
    try {
      if (engine_.replays())
        engine_.ObserveCapture(nullptr);
      else
        engine_.Observe(nullptr);
    } catch (const Error&) {
      // A step has failed while others were in flight: nobody steps this engine again.
    }
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  void SetOrigin() {
    if (engine_.replays())
      replay_.SetOrigin(engine_.stream(StreamId::kCompute));
    else
      eager_.SetOrigin();
  }
  std::vector<OpSpan> Spans() { return engine_.replays() ? replay_.Spans() : eager_.Spans(); }
  int64_t event_nodes() const { return replay_.events(); }

 private:
  Engine& engine_;
  OpTimer eager_;
  ReplayTimer replay_;
};

}  // namespace

nlohmann::ordered_json StepTrace::Json() const {
  return {{"step", replay ? "instrumented replay" : "eager"},
          {"event_nodes", event_nodes},
          {"step_ms_instrumented", instrumented_ms},
          {"step_ms_plain", plain_ms}};
}

std::string StepTrace::Text() const {
  return replay
             ? fmt::format(
                   "traced an instrumented replay: steps take {:.3f} ms with its {} event nodes, {:.3f} ms "
                   "without",
                   instrumented_ms, event_nodes, plain_ms)
             : fmt::format(
                   "traced an eager step: steps take {:.3f} ms op by op with events, {:.3f} ms without",
                   instrumented_ms, plain_ms);
}

StepTrace TraceStep(Session& session, const std::string& path,
                    const std::function<std::vector<double>(int64_t)>& run_steps, double plain_ms) {
  Engine& engine = session.engine();
  StepTimer timer(engine);
  run_steps(kFirstSteps);
  StepTrace traced;
  traced.replay = engine.replays();
  traced.instrumented_ms = Median(run_steps(kTimedSteps));
  traced.plain_ms = plain_ms;
  const Clock::time_point zero = CommonZero(engine.comms().world());
  timer.SetOrigin();
  const double origin_ms = std::chrono::duration<double, std::milli>(Clock::now() - zero).count();
  run_steps(1);
  traced.event_nodes = timer.event_nodes();
  const std::string mine = EventsOf(session.rank(), timer.Spans(), origin_ms).dump();
  const std::vector<std::string> all = engine.comms().world().HostAllGather(mine);
  if (session.rank() != 0) return traced;
  json events = json::array();
  for (const std::string& of_rank : all)
    for (json& event : json::parse(of_rank)) events.push_back(std::move(event));
  const json trace = {{"displayTimeUnit", "ms"},
                      {"otherData",
                       {{"plan_hash", PlanHash(*session.run().plans.train)},
                        {"device", session.device().name()},
                        {"ranks", session.world()},
                        {"trace", traced.Json()}}},
                      {"traceEvents", std::move(events)}};
  WriteFileAtomically(FileSystem::Posix(), path, trace.dump(-1, ' ', false, json::error_handler_t::replace));
  return traced;
}

}  // namespace millrace
