#include "runtime/plan/report/plan_html.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/plan/report/page_assets.h"
#include "runtime/plan/report/plan_json.h"

namespace millrace {
namespace {

using nlohmann::json;

// Arrays instead of objects where there are thousands: [name, bytes, class, [live begin,
// end, ...], [offset, ...]].
json BuffersJson(const StepPlan& plan) {
  json buffers = json::array();
  for (const PlanBuffer& buffer : plan.buffers) {
    json live = json::array();
    for (const Interval& i : buffer.live) {
      live.push_back(i.begin);
      live.push_back(i.end);
    }
    buffers.push_back(
        {buffer.name, buffer.bytes, static_cast<int>(buffer.cls), std::move(live), buffer.offsets});
  }
  return buffers;
}

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

class BodiesWriter {
 public:
  BodiesWriter(const StepPlan& plan, const PlanReport& report) {
    size_t next = 0;  // report.ops lists the ops of all bodies in the same order
    for (const Body& body : plan.bodies) {
      json ops = json::array();
      for (const PlanOp& op : body.ops) ops.push_back(OpJson(op, report.ops[next++]));
      bodies_.push_back({{"name", body.name}, {"begin", body.begin}, {"ops", std::move(ops)}});
    }
  }
  json TakeBodies() { return std::move(bodies_); }
  const json& kinds() const { return kinds_; }

 private:
  // [kind, stream, label, flops, read, write, wire, ns, [buffers read], [buffers written]]
  json OpJson(const PlanOp& op, const OpFigures& figures) {
    const auto [it, fresh] = kind_index_.try_emplace(figures.kind, kinds_.size());
    if (fresh) kinds_.push_back(figures.kind);
    json reads = json::array(), writes = json::array();
    ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
      if (Reads(access)) reads.push_back(view.buffer.value);
      if (Writes(access)) writes.push_back(view.buffer.value);
    });
    const OpEstimate& e = figures.each;
    return {it->second,       static_cast<int>(op.stream),
            op.label,         std::llround(e.flops),
            e.read_bytes,     e.write_bytes,
            e.wire_bytes,     Nanoseconds(e.seconds),
            std::move(reads), std::move(writes)};
  }

  json bodies_ = json::array(), kinds_ = json::array();
  std::map<std::string, size_t> kind_index_;
};

// Per entry: body, microbatch, edges as triples (from entry, from op, to op), begin
// and end of each op in ns.
json ScheduleJson(const StepPlan& plan, const Timeline& line) {
  json schedule = json::array();
  size_t next = 0;
  for (const Entry& entry : plan.schedule) {
    json edges = json::array(), times = json::array();
    for (const Edge& edge : entry.edges)
      for (int32_t index : {edge.from_entry, edge.from_op, edge.to_op}) edges.push_back(index);
    for (size_t o = 0; o < plan.bodies[static_cast<size_t>(entry.body)].ops.size(); ++o, ++next) {
      times.push_back(Nanoseconds(line.ops[next].begin));
      times.push_back(Nanoseconds(line.ops[next].end));
    }
    schedule.push_back({{"body", entry.body},
                        {"microbatch", entry.microbatch},
                        {"edges", std::move(edges)},
                        {"t", std::move(times)}});
  }
  return schedule;
}

json PageData(const ReportInput& input, const PlanReport& report) {
  const StepPlan& plan = input.plan;
  const Timeline line = Simulate(plan, plan.schedule, report.mesh, report.machine, input.join);
  BodiesWriter bodies(plan, report);
  json classes = json::array(), streams = json::array();
  for (int c = 0; c < kBufferClasses; ++c) classes.push_back(Name(static_cast<BufferClass>(c)));
  for (int s = 0; s < kStreams; ++s) streams.push_back(Name(static_cast<StreamId>(s)));
  return {{"report", PlanReportJson(report, OpList::kNone)},
          {"classes", std::move(classes)},
          {"streams", std::move(streams)},
          {"end", plan.timeline_end()},
          {"buffers", BuffersJson(plan)},
          {"bodies", bodies.TakeBodies()},
          {"kinds", bodies.kinds()},
          {"schedule", ScheduleJson(plan, line)}};
}

// JSON inside a script element: "<" is written as an escape, so that no string can end the element.
std::string Embeddable(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

void Fill(std::string& page, std::string_view mark, const std::string& text) {
  const size_t at = page.find(mark);
  MR_CHECK(at != std::string::npos, "the page has no {}", mark);
  page.replace(at, mark.size(), text);
}

}  // namespace

std::string PlanHtml(const ReportInput& input, const PlanReport& report) {
  std::string page = kPageHtml;
  Fill(page, "@STYLE@", kPageCss);
  Fill(page, "@SCRIPT@", kPageJs);
  Fill(page, "@DATA@", Embeddable(DumpJson(PageData(input, report), {.replace = true})));
  return page;
}

}  // namespace millrace
