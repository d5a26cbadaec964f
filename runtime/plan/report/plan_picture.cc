#include "runtime/plan/report/plan_picture.h"

#include <utility>

namespace millrace {
namespace {

StepPicture::Op OpOf(const PlanOp& op, const OpFigures& figures) {
  const OpEstimate& e = figures.each;
  StepPicture::Op shown{figures.kind, op.label, op.stream,
                        e.seconds,    e.flops,  e.read_bytes + e.write_bytes,
                        e.wire_bytes, {},       {}};
  ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
    if (Reads(access)) shown.reads.push_back(view.buffer.value);
    if (Writes(access)) shown.writes.push_back(view.buffer.value);
  });
  return shown;
}

}  // namespace

StepPicture PictureOf(const ReportInput& input, const PlanReport& report) {
  const StepPlan& plan = input.plan;
  StepPicture picture;
  for (int c = 0; c < kBufferClasses; ++c)
    picture.classes.emplace_back(Name(static_cast<BufferClass>(c)));
  picture.arena = report.memory.arena;
  picture.persistent = report.memory.persistent;
  picture.end = plan.timeline_end();
  picture.peak = report.memory.peak_position;
  for (const PlanBuffer& buffer : plan.buffers) {
    StepPicture::Buffer shown{buffer.name, buffer.bytes, static_cast<int>(buffer.cls), {}, {}};
    for (const Interval& i : buffer.live) shown.live.insert(shown.live.end(), {i.begin, i.end});
    shown.offsets.assign(buffer.offsets.begin(), buffer.offsets.end());
    picture.buffers.push_back(std::move(shown));
  }
  size_t next = 0;  // report.ops lists the ops of all bodies in the same order
  for (const Body& body : plan.bodies) {
    picture.bodies.push_back({body.name, body.begin, {}});
    for (const PlanOp& op : body.ops)
      picture.bodies.back().ops.push_back(OpOf(op, report.ops[next++]));
  }
  const Timeline line = Simulate(plan, plan.schedule, report.mesh, report.machine, input.join);
  next = 0;
  for (const Entry& entry : plan.schedule) {
    StepPicture::Entry shown{entry.body, entry.microbatch, {}, {}};
    for (const Edge& edge : entry.edges)
      shown.edges.insert(shown.edges.end(), {edge.from_entry, edge.from_op, edge.to_op});
    for (size_t o = plan.body(entry).ops.size(); o > 0; --o, ++next)
      shown.times.insert(shown.times.end(), {line.ops[next].begin, line.ops[next].end});
    picture.schedule.push_back(std::move(shown));
  }
  return picture;
}

}  // namespace millrace
