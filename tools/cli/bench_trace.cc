#include "tools/cli/bench_trace.h"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "runtime/data/file_system.h"
#include "runtime/exec/op_timer.h"

namespace millrace {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

json NameOf(int rank, int stream, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", stream}, {"name", what}, {"args", {{"name", name}}}};
}

json EventsOf(int rank, const std::vector<OpTimer::Span>& spans, double origin_ms) {
  json events = json::array({NameOf(rank, 0, "process_name", "rank " + std::to_string(rank))});
  for (int s = 0; s < kStreams; ++s)
    events.push_back(NameOf(rank, s, "thread_name", std::string(Name(static_cast<StreamId>(s)))));
  for (const OpTimer::Span& span : spans)
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

}  // namespace

void TraceStep(Session& session, const std::string& path, const std::function<void()>& run_step) {
  Engine& engine = session.engine();
  OpTimer timer(session.device(), [&](StreamId id) -> Stream& { return engine.stream(id); });
  const ObserverScope scope(engine, timer);
  run_step();  // makes the events
  const Clock::time_point zero = CommonZero(engine.comms().world());
  timer.SetOrigin();
  const double origin_ms = std::chrono::duration<double, std::milli>(Clock::now() - zero).count();
  run_step();
  const std::string mine = EventsOf(session.rank(), timer.Spans(), origin_ms).dump();
  const std::vector<std::string> all = engine.comms().world().HostAllGather(mine);
  if (session.rank() != 0) return;
  json events = json::array();
  for (const std::string& of_rank : all)
    for (json& event : json::parse(of_rank)) events.push_back(std::move(event));
  const json trace = {{"displayTimeUnit", "ms"},
                      {"otherData",
                       {{"plan_hash", PlanHash(*session.run().plans.train)},
                        {"device", session.device().name()},
                        {"ranks", session.world()}}},
                      {"traceEvents", std::move(events)}};
  WriteFileAtomically(FileSystem::Posix(), path, trace.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace millrace
