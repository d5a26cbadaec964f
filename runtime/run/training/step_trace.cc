#include "runtime/run/training/step_trace.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/json.h"
#include "runtime/exec/observe/op_timer.h"
#include "runtime/exec/observe/replay_timer.h"

namespace millrace {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

json NameOf(int rank, int stream, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", stream}, {"name", what}, {"args", {{"name", name}}}};
}

json EventsOf(int rank, const std::vector<OpSpan>& spans, double origin_ms) {
  json events = json::array({NameOf(rank, 0, "process_name", "rank " + std::to_string(rank))});
  int streams = kStreams - 1;  // that of exchanges where it is used
  for (const OpSpan& span : spans) streams = std::max(streams, static_cast<int>(span.stream) + 1);
  for (int s = 0; s < streams; ++s)
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

// When the first rank of this rank's host left a barrier that all ranks left about then. Processes
// of one host have one steady clock.
Clock::time_point CommonZero(Communicator& world) {
  world.Barrier();
  const std::string name = HostName();
  const auto now = Clock::now();
  const json mine = {{"host", name}, {"ns", now.time_since_epoch() / std::chrono::nanoseconds(1)}};
  for (const std::string& text : world.HostAllGather(DumpJson(mine))) {
    const json of_rank = ParseJson(text);
    if (of_rank["host"] == name)
      return Clock::time_point(std::chrono::nanoseconds(of_rank["ns"].get<int64_t>()));
  }
  return now;
}

}  // namespace

StepTracer::StepTracer(Session& session) : session_(session) {
  Engine& engine = session.engine();
  if (engine.replays()) {
    replay_ = std::make_unique<ReplayTimer>(engine.device());
    engine.ObserveCapture(replay_.get());
  } else {
    eager_ = std::make_unique<OpTimer>(
        engine.device(), [&engine](StreamId id) -> Stream& { return engine.stream(id); });
    engine.Observe(eager_.get());
  }
}

StepTracer::~StepTracer() {
  try {
    if (replay_)
      session_.engine().ObserveCapture(nullptr);
    else
      session_.engine().Observe(nullptr);
  } catch (const Error&) {
    // A step has failed while others were in flight: nobody steps this engine again.
  }
}

int64_t StepTracer::event_nodes() const { return replay_ ? replay_->events() : 0; }

void StepTracer::Begin() {
  const Clock::time_point zero = CommonZero(session_.engine().comms().world());
  if (replay_)
    replay_->SetOrigin(session_.engine().stream(StreamId::kCompute));
  else
    eager_->SetOrigin();
  origin_ms_ = std::chrono::duration<double, std::milli>(Clock::now() - zero).count();
}

std::vector<OpSpan> StepTracer::Spans() { return replay_ ? replay_->Spans() : eager_->Spans(); }

std::string StepTracer::Text(const nlohmann::ordered_json& other) {
  const std::string mine = DumpJson(EventsOf(session_.rank(), Spans(), origin_ms_));
  const std::vector<std::string> all = session_.engine().comms().world().HostAllGather(mine);
  if (session_.rank() != 0) return "";
  json events = json::array();
  for (const std::string& of_rank : all)
    for (json& event : ParseJson(of_rank)) events.push_back(std::move(event));
  nlohmann::ordered_json about = {{"plan_hash", PlanHash(session_.run().plans.Of("train"))},
                                  {"device", session_.device().name()},
                                  {"ranks", session_.world()}};
  about.update(other);
  const nlohmann::ordered_json trace = {
      {"displayTimeUnit", "ms"}, {"otherData", about}, {"traceEvents", std::move(events)}};
  return DumpJson(trace, {.replace = true});
}

std::string StepTracer::TextOfStep(int64_t done) {
  return Text({{"step", done}, {"trace", {{"step", replay() ? "instrumented replay" : "eager"}}}});
}

std::string TracedStep::WhyNone(int64_t first, int64_t last) const {
  if (step_ <= 0 || (FirstPrepared() >= first && step_ <= last)) return "";
  return fmt::format(
      "no timeline: this call trains steps {} to {}, and one of step {} takes steps {} to {}",
      first, last, step_, FirstPrepared(), step_);
}

void TracedStep::Prepare(int64_t step) {
  if (StartsAt(step)) tracer_ = std::make_unique<StepTracer>(session_);
  if (tracer_ && step == step_) tracer_->Begin();
}

std::optional<std::string> TracedStep::Finish(int64_t step) {
  if (!tracer_ || step != step_) return std::nullopt;
  std::string text = tracer_->TextOfStep(step);
  tracer_.reset();
  return text;
}

}  // namespace millrace
