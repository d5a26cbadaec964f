#include "runtime/plan/check/checker_corners.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "runtime/plan/check/checker.h"

namespace millrace {
namespace {

// The axes that some op's bytes depend on.
AxisSet AxesNamed(const StepPlan& plan) {
  AxisSet axes;
  for (const Body& body : plan.bodies) {
    for (const PlanOp& op : body.ops) {
      // In place: reads the rank's own slice.
      const auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
      if (gather != nullptr && !gather->shard) axes = axes | gather->axes;
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        if (view.rank_stride != 0) axes = axes | view.rank_axes;
      });
    }
  }
  return axes;
}

}  // namespace

std::vector<int> CornerRanks(const Mesh& mesh, AxisSet axes) {
  const std::vector<int> group = mesh.Group(0, axes);
  if (group.size() <= 4) return group;
  const auto stands_for_all = [&](int rank) {
    bool corner = true, middle = true;
    for (const Axis axis : kAxes) {
      if (!axes.Has(axis)) continue;
      const int at = mesh.Index(rank, axis), last = mesh.Size(axis) - 1;
      corner = corner && (at == 0 || at == last);
      middle = middle && at == mesh.Size(axis) / 2;
    }
    return corner || middle;
  };
  std::vector<int> ranks;
  std::copy_if(group.begin(), group.end(), std::back_inserter(ranks), stands_for_all);
  return ranks;
}

std::vector<int> CornersOf(const StepPlan& plan, const Mesh& mesh) {
  return CornerRanks(mesh, AxesNamed(plan));
}

}  // namespace millrace
