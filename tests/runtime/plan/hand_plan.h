// Plans written op by op, for tests of what reads plans: checker, edges, executors.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/step_plan.h"

namespace millrace::test {

// One body "step", run once per schedule, over f32 buffers of 64 elements (256
// bytes) unless said otherwise.
class HandPlan {
 public:
  HandPlan() {
    plan.name = "train";
    plan.bodies.push_back({"step", {}, 0});
  }

  // A buffer at slot `slot` of the arena, live over the positions given.
  BufferId Buffer(const std::string& name, int64_t slot, std::vector<Interval> live,
                  BufferScope scope = BufferScope::kMicrobatch) {
    plan.buffers.push_back(
        {name, 256, BufferClass::kActivations, scope, std::move(live), {slot * 256}, -1, false});
    plan.arena_bytes = std::max(plan.arena_bytes, (slot + 1) * 256);
    return BufferId{static_cast<int32_t>(plan.buffers.size()) - 1};
  }
  // State that the host writes; slots of persistent buffers come first. Call before Buffer.
  BufferId Master(const std::string& name) {
    const BufferId id =
        Buffer(name, plan.persistent_bytes / 256, {{0, 1000}}, BufferScope::kPersistent);
    plan.persistent_bytes += 256;
    plan.prologue_seam.reads.push_back(id);
    return id;
  }

  static View Whole(BufferId buffer) { return Part(buffer, 0, 64); }
  static View Part(BufferId buffer, int64_t offset, int64_t numel) {
    View view;
    view.buffer = buffer;
    view.offset = offset;
    view.layout = DenseLayout(DType::kF32, {numel});
    return view;
  }

  // out = x.
  int Copy(StreamId stream, const View& x, const View& out) {
    CastOp<View> op;
    op.x = x;
    op.out = out;
    return Op(stream, op, "copy");
  }
  int Op(StreamId stream, KernelOp op, const std::string& label) {
    Body& body = plan.bodies.back();
    body.ops.push_back({std::move(op), stream, label + std::to_string(body.ops.size()), {}});
    return static_cast<int>(body.ops.size()) - 1;
  }
  // Ends the body; the schedule runs it once, with `edges` (to <- from).
  StepPlan Done(std::initializer_list<std::pair<int, int>> edges = {}) {
    Entry entry;
    for (const auto& [to, from] : edges) entry.edges.push_back({0, from, to});
    plan.schedule = {entry};
    return plan;
  }

  StepPlan plan;
};

}  // namespace millrace::test
