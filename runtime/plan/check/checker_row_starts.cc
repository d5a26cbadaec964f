#include "runtime/plan/check/checker_row_starts.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/plan/check/access_table.h"

namespace millrace {
namespace {

// f(typed op, body, index) for each op of the plan.
template <class F>
void ForEachOp(const StepPlan& plan, F f) {
  for (size_t b = 0; b < plan.bodies.size(); ++b)
    for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o)
      std::visit([&](const auto& op) { f(op, static_cast<int>(b), static_cast<int>(o)); },
                 static_cast<const KernelOp::Alternatives&>(plan.bodies[b].ops[o].op));
}

// Rows of a sequence at one rank, by the shapes of the op.
int64_t RowsPerRank(const EmbedOp<View>& op) { return 2 * op.tokens.layout.dims[1]; }
int64_t RowsPerRank(const EmbedGradOp<View>& op) { return 2 * op.tokens.layout.dims[1]; }
int64_t RowsPerRank(const RopeTableOp<View>& op) { return op.table.layout.dims[0]; }
int64_t RowsPerRank(const AttentionOp<View>& op) { return op.q.layout.dims[1]; }
int64_t RowsPerRank(const AttentionGradOp<View>& op) { return op.q.layout.dims[1]; }

bool AreChunkStarts(const ContextRows& rows, int64_t rows_per_rank, const Mesh& mesh) {
  const AxisSet axes = rows.first.axes;
  const int64_t n = mesh.Size(axes), chunk = rows_per_rank / 2;
  if (rows.second.axes != axes || rows.ranks != n || rows_per_rank % 2 != 0) return false;
  const std::vector<int> group = mesh.Group(0, axes);
  return std::all_of(group.begin(), group.end(), [&](int rank) {
    const int64_t c = mesh.Index(rank, axes);
    return rows.first.At(mesh, rank) == c * chunk &&
           rows.second.At(mesh, rank) == (2 * n - 1 - c) * chunk;
  });
}

AxisSet FindChunks(const StepPlan& plan, const Mesh& mesh, Violations* found) {
  AxisSet sequences;
  ForEachOp(plan, [&](const auto& op, int b, int o) {
    if constexpr (requires { op.rows.split(); }) {
      if (!found->empty() || !op.rows.split()) return;
      const AxisSet axes = mesh.Wide(op.rows.first.axes);
      const bool same = sequences.empty() || sequences == axes;
      if (!same || !AreChunkStarts(op.rows, RowsPerRank(op), mesh))
        found->push_back(
            {ViolationKind::kRows,
             same ? fmt::format("{}: the starts of its chunks do not give each rank of {} its two",
                                DescribeAt(plan, b, o), ToString(axes))
                  : fmt::format("{}: sequences are split over {}, in ops before it over {}",
                                DescribeAt(plan, b, o), ToString(axes), ToString(sequences))});
      sequences = axes;
    }
  });
  return sequences;
}

// Rows that the ops of one kind in a body take from `row_begin` on, over all ranks that share them.
struct Taken {
  int64_t rows = 0;              // of the microbatch
  std::map<int64_t, int> steps;  // by row: how many more ops take it than the row before
  int body = 0, op = 0;          // the last of the ops

  void Add(int64_t begin, int64_t count) { ++steps[begin], --steps[begin + count]; }
  // Is each row taken as often as the others, at least once?
  bool Evenly() const {
    int64_t at = 0, takers = 0, each = 0;
    for (const auto& [row, change] : steps) {
      if (row < 0 || row > rows) return false;
      if (row > at) {
        if (takers == 0 || (each != 0 && takers != each)) return false;
        each = takers;
      }
      takers += change;
      at = row;
    }
    return at == rows && each > 0;
  }
};

int64_t RowsTaken(const EmbedOp<View>& op) { return op.out.layout.dims[0]; }
int64_t RowsTaken(const EmbedGradOp<View>& op) { return op.d_out.layout.dims[0]; }
int64_t RowsTaken(const CrossEntropyOp<View>& op) { return op.logits.layout.dims[0]; }
int64_t AllRows(const EmbedOp<View>& op) { return op.tokens.layout.numel(); }
int64_t AllRows(const EmbedGradOp<View>& op) { return op.tokens.layout.numel(); }
int64_t AllRows(const CrossEntropyOp<View>& op) { return op.targets.layout.numel(); }

void FindUnevenRows(const StepPlan& plan, const Mesh& mesh, Violations* found) {
  std::map<std::pair<int, std::string_view>, Taken> taken;  // by body and kind of op
  ForEachOp(plan, [&](const auto& op, int b, int o) {
    if constexpr (requires { op.row_begin; }) {
      Taken& of = taken[{b, op.kName}];
      of.rows = AllRows(op), of.body = b, of.op = o;
      for (const int rank : mesh.Group(0, op.row_begin.axes))
        of.Add(op.row_begin.At(mesh, rank), RowsTaken(op));
    }
  });
  for (const auto& [place, of] : taken)
    if (found->empty() && !of.Evenly())
      found->push_back(
          {ViolationKind::kRows,
           fmt::format("{}: with its like in the body it does not take each of {} rows as often",
                       DescribeAt(plan, of.body, of.op), of.rows)});
}

}  // namespace

AxisSet FindRowStarts(const StepPlan& plan, const Mesh& mesh, Violations* found) {
  const AxisSet sequences = FindChunks(plan, mesh, found);
  if (found->empty()) FindUnevenRows(plan, mesh, found);
  return sequences;
}

}  // namespace millrace
