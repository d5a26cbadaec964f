#include "runtime/plan/check/checker_answers.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "runtime/plan/check/access_table.h"

namespace millrace {
namespace {

// Rows are of sequences that keep caches.
bool TakesRows(const StepPlan& plan) {
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (std::holds_alternative<EmbedRowsOp<View>>(op.op)) return true;
  return false;
}

class AnswerWalk {
 public:
  AnswerWalk(const StepPlan& plan, const Mesh& mesh, AxisSet together, const AccessTable& table)
      : plan_(plan),
        mesh_(mesh),
        together_(together),
        table_(table),
        differs_(static_cast<size_t>(table.cells())) {
    // Whether a rank has its shard or its part of a weight: no other rank has the same.
    for (const PlanBuffer& buffer : plan.buffers)
      if (IsState(buffer.scope) && buffer.cls == BufferClass::kParameters)
        for (const int64_t offset : buffer.offsets) Set({offset, offset + buffer.bytes}, together);
  }

  void Run(const std::vector<Entry>& schedule) {
    for (const Entry& entry : schedule) {
      const std::vector<PlanOp>& ops = plan_.bodies[static_cast<size_t>(entry.body)].ops;
      for (size_t o = 0; o < ops.size(); ++o)
        Step(ops[o].op, table_.of(entry.body, static_cast<int>(o)));
    }
  }

  void CheckOutputs(Violations* found) const {
    for (const PlanOutput& output : plan_.outputs) {
      const PlanBuffer& buffer = plan_.buffer(output.view.buffer);
      const int64_t begin =
          buffer.offsets.back() + Bytes(output.view.layout.dtype) * output.view.FirstOn(mesh_, 0);
      const auto [first, last] = table_.CellsIn({begin, begin + output.view.layout.span_bytes()});
      for (int c = first; c < last && found->empty(); ++c)
        if (const AxisSet axes = differs_[static_cast<size_t>(c)]; !axes.empty())
          found->push_back({ViolationKind::kRows,
                            fmt::format("the {} plan's output {} is not the same on the ranks of "
                                        "{}, which generate together",
                                        plan_.name, output.name, ToString(axes))});
    }
  }

 private:
  // The axes over which the op makes what ranks hold the same.
  AxisSet MadeSame(const KernelOp& op) const {
    if (const auto* gather = std::get_if<AllGatherOp<View>>(&op)) return mesh_.Wide(gather->axes);
    if (const auto* sum = std::get_if<AllReduceOp<View>>(&op)) return mesh_.Wide(sum->axes);
    return {};
  }

  // The axes over which it gives ranks other parts.
  AxisSet MadeOther(const KernelOp& op) const {
    AxisSet axes;
    if (const auto* scatter = std::get_if<ReduceScatterOp<View>>(&op)) axes = scatter->axes;
    if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op)) axes = exchange->axes;
    ForEachUse(op, [&](const View& view, Access, std::string_view) {
      if (view.rank_stride != 0) axes = axes | view.rank_axes;
    });
    return mesh_.Wide(axes) & together_;
  }

  void Step(const KernelOp& op, std::span<const CellAccess> accesses) {
    AxisSet differs = MadeOther(op);
    for (const CellAccess& access : accesses)
      if (access.effect == Effect::kRead)
        for (int32_t c = access.begin; c < access.end; ++c)
          differs = differs | differs_[static_cast<size_t>(c)];
    differs = differs - MadeSame(op);
    for (const CellAccess& access : accesses)
      if (access.effect != Effect::kRead)
        std::fill(differs_.begin() + access.begin, differs_.begin() + access.end,
                  access.effect == Effect::kScratch ? AxisSet() : differs);
  }

  void Set(const ByteRange& bytes, AxisSet axes) {
    const auto [first, last] = table_.CellsIn(bytes);
    std::fill(differs_.begin() + first, differs_.begin() + last, axes);
  }

  const StepPlan& plan_;
  const Mesh& mesh_;
  const AxisSet together_;
  const AccessTable& table_;
  std::vector<AxisSet> differs_;  // by cell: the axes along which ranks hold other things there
};

}  // namespace

void FindAnswerViolations(const StepPlan& plan, const Mesh& mesh, int accumulate,
                          Violations* found) {
  const AxisSet together = mesh.Wide(AxisSet::All() - kDataAxes);
  if (together.empty() || !TakesRows(plan)) return;
  const AccessTable table(plan, mesh, accumulate, 0, found);  // which cells differ is alike on all
  if (!found->empty()) return;
  AnswerWalk walk(plan, mesh, together, table);
  walk.Run(plan.prologue);
  walk.Run(plan.schedule);
  walk.Run(plan.schedule);  // with what the first has left in caches
  walk.CheckOutputs(found);
}

}  // namespace millrace
