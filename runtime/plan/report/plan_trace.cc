#include "runtime/plan/report/plan_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kProcess = 0;
double Micros(double seconds) { return seconds * 1e6; }

// Bytes of each class that live at each position.
std::vector<std::array<int64_t, kBufferClasses>> LiveBytes(const StepPlan& plan) {
  std::vector<std::array<int64_t, kBufferClasses>> live(static_cast<size_t>(plan.timeline_end()) +
                                                        1);
  for (const PlanBuffer& buffer : plan.buffers) {
    for (const Interval& i : buffer.live) {
      live[static_cast<size_t>(i.begin)][static_cast<size_t>(buffer.cls)] += buffer.bytes;
      live[static_cast<size_t>(i.end)][static_cast<size_t>(buffer.cls)] -= buffer.bytes;
    }
  }
  for (size_t p = 1; p < live.size(); ++p)
    for (size_t c = 0; c < live[p].size(); ++c) live[p][c] += live[p - 1][c];
  return live;
}

class TraceWriter {
 public:
  explicit TraceWriter(const ReportInput& input)
      : plan_(input.plan),
        mesh_(input.layout.mesh),
        machine_(ShareOf(input.machine, mesh_.world())),
        line_(Simulate(plan_, plan_.schedule, mesh_, machine_, input.join)) {}

  std::string Write() {
    for (const Entry& entry : plan_.schedule) {
      first_.push_back(ops_);
      ops_ += BodyOf(entry).ops.size();
    }
    AddOps();
    AddEdges();
    AddLiveBytes();
    std::stable_sort(events_.begin(), events_.end(), [](const json& a, const json& b) {
      return a["ts"].get<double>() < b["ts"].get<double>();
    });
    json all = Names();
    for (json& event : events_) all.push_back(std::move(event));
    return DumpJson(json{{"displayTimeUnit", "ms"},
                         {"otherData",
                          {{"plan_hash", PlanHash(plan_)},
                           {"machine", machine_.title},
                           {"ranks", mesh_.world()}}},
                         {"traceEvents", std::move(all)}},
                    {.replace = true});
  }

 private:
  const Body& BodyOf(const Entry& entry) const { return plan_.body(entry); }
  const SimulatedOp& At(int32_t entry, int32_t op) const {
    return line_.ops[first_[static_cast<size_t>(entry)] + static_cast<size_t>(op)];
  }

  json Names() const {
    json names = json::array({{{"ph", "M"},
                               {"pid", kProcess},
                               {"name", "process_name"},
                               {"args", {{"name", "rank 0"}}}}});
    for (int s = 0; s < Timeline::StreamsShown(line_.busy); ++s) {
      names.push_back({{"ph", "M"},
                       {"pid", kProcess},
                       {"tid", s},
                       {"name", "thread_name"},
                       {"args", {{"name", Name(static_cast<StreamId>(s))}}}});
      names.push_back({{"ph", "M"},
                       {"pid", kProcess},
                       {"tid", s},
                       {"name", "thread_sort_index"},
                       {"args", {{"sort_index", s}}}});
    }
    return names;
  }

  void AddOps() {
    CostModel model(mesh_, machine_);
    for (const SimulatedOp& run : line_.ops) {
      const Entry& entry = plan_.schedule[static_cast<size_t>(run.entry)];
      const Body& body = BodyOf(entry);
      const PlanOp& op = body.ops[static_cast<size_t>(run.op)];
      const OpEstimate e = model.Of(op.op);
      events_.push_back({{"ph", "X"},
                         {"pid", kProcess},
                         {"tid", static_cast<int>(run.stream)},
                         {"ts", Micros(run.begin)},
                         {"dur", Micros(run.end - run.begin)},
                         {"name", op.label.empty() ? std::string(OpName(op.op)) : op.label},
                         {"cat", OpName(op.op)},
                         {"args",
                          {{"body", body.name},
                           {"microbatch", entry.microbatch},
                           {"flops", e.flops},
                           {"memory_bytes", e.read_bytes + e.write_bytes},
                           {"wire_bytes", e.wire_bytes},
                           {"bound", Name(e.bound)}}}});
    }
  }

  void AddEdges() {
    int id = 0;
    for (size_t e = 0; e < plan_.schedule.size(); ++e) {
      for (const Edge& edge : plan_.schedule[e].edges) {
        const SimulatedOp& from = At(edge.from_entry, edge.from_op);
        const SimulatedOp& to = At(static_cast<int32_t>(e), edge.to_op);
        // A flow event binds to the slice that encloses its time: the middle of the writer, the
        // begin of the waiter.
        AddFlow("s", id, from, (from.begin + from.end) / 2);
        AddFlow("f", id, to, to.begin);
        ++id;
      }
    }
  }

  void AddFlow(const char* phase, int id, const SimulatedOp& at, double seconds) {
    json event = {{"ph", phase},           {"pid", kProcess}, {"tid", static_cast<int>(at.stream)},
                  {"ts", Micros(seconds)}, {"id", id},        {"name", "edge"},
                  {"cat", "edge"}};
    if (*phase == 'f') event["bp"] = "e";
    events_.push_back(std::move(event));
  }

  // Sampled where compute ops begin: the plan's positions are in their order.
  void AddLiveBytes() {
    const std::vector<std::array<int64_t, kBufferClasses>> live = LiveBytes(plan_);
    const std::array<int64_t, kBufferClasses>* last = nullptr;
    for (const SimulatedOp& run : line_.ops) {
      if (run.stream != StreamId::kCompute) continue;
      const Body& body = BodyOf(plan_.schedule[static_cast<size_t>(run.entry)]);
      const auto& now = live[static_cast<size_t>(body.begin + run.op)];
      if (last != nullptr && *last == now) continue;
      last = &now;
      json args = json::object();
      for (size_t c = 0; c < now.size(); ++c)
        args[std::string(Name(static_cast<BufferClass>(c)))] = now[c];
      events_.push_back({{"ph", "C"},
                         {"pid", kProcess},
                         {"ts", Micros(run.begin)},
                         {"name", "live bytes"},
                         {"args", std::move(args)}});
    }
  }

  const StepPlan& plan_;
  const Mesh mesh_;
  const Machine machine_;
  const Timeline line_;
  std::vector<size_t> first_;  // by entry: index of its first op in line_.ops
  size_t ops_ = 0;
  std::vector<json> events_;
};

}  // namespace

std::string PlanTrace(const ReportInput& input) { return TraceWriter(input).Write(); }

}  // namespace millrace
