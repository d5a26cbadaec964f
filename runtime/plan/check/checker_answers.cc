#include "runtime/plan/check/checker_answers.h"

#include <fmt/core.h>

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
        differs_(table.cells()),
        terms_(table.cells()) {
    // Whether a rank has its shard or its part of a weight: no other rank has the same.
    for (const PlanBuffer& buffer : plan.buffers)
      if (IsState(buffer.scope) && buffer.cls == BufferClass::kParameters)
        for (const int64_t offset : buffer.offsets) Set({offset, offset + buffer.bytes}, together);
  }

  void Run(const std::vector<Entry>& schedule) {
    for (const Entry& entry : schedule) {
      const std::vector<PlanOp>& ops = plan_.body(entry).ops;
      for (size_t o = 0; o < ops.size(); ++o)
        Step(ops[o].op, table_.of(entry.body, static_cast<int>(o)));
    }
  }

  void CheckOutputs(Violations* found) const {
    for (const PlanOutput& output : plan_.outputs) {
      const PlanBuffer& buffer = plan_.buffer(output.view.buffer);
      const int64_t begin =
          buffer.offsets.back() + Bytes(output.view.layout.dtype) * output.view.FirstOn(mesh_, 0);
      for (const CellId c : table_.CellsIn({begin, begin + output.view.layout.span_bytes()})) {
        Report(output, differs_[c], "is not the same on", found);
        Report(output, terms_[c], "lacks a sum over", found);
      }
    }
  }

 private:
  void Report(const PlanOutput& output, AxisSet axes, std::string_view what,
              Violations* found) const {
    if (axes.empty() || !found->empty()) return;
    found->push_back({ViolationKind::kRows,
                      fmt::format("the {} plan's output {} {} the ranks of {}, which generate "
                                  "together",
                                  plan_.name, output.name, what, ToString(axes))});
  }

  // Whether an operand's columns are summed over.
  static bool IsSummed(const KernelOp& op, std::string_view operand) {
    if (std::holds_alternative<RowLinearOp<View>>(op)) return operand == "x";
    return operand == "a" && (std::holds_alternative<MatmulOp<View>>(op) ||
                              std::holds_alternative<GroupedMatmulOp<View>>(op));
  }

  // Whether what the op writes is not of all that it reads, but of `sum`'s terms alone.
  static bool IsPlainSum(const KernelOp& op, std::string_view written) {
    return written == "sum" && (std::holds_alternative<RowLinearOp<View>>(op) ||
                                std::holds_alternative<NormOp<View>>(op));
  }
  static bool IsTerm(std::string_view read) { return read == "x" || read == "residual"; }

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
    std::visit(
        [&](const auto& typed) {
          ForEachRankInt(typed, [&](const RankInt& integer, std::string_view) {
            if (integer.stride != 0) axes = axes | integer.axes;
          });
        },
        op);
    return mesh_.Wide(axes) & together_;
  }

  // What holds of a result: the axes along which ranks have other ones, and terms of sums.
  struct Found {
    AxisSet differs, terms;
  };

  void Step(const KernelOp& op, std::span<const CellAccess> accesses) {
    Found all, plain_sum;  // of all that is read; of a sum's terms
    for (const CellAccess& access : accesses) {
      if (access.effect != Effect::kRead && access.effect != Effect::kPart) continue;
      Found read;
      for (const CellId c : access.cells) {
        read.differs = read.differs | differs_[c];
        read.terms = read.terms | terms_[c];
      }
      if (IsTerm(access.operand)) {
        plain_sum.differs = plain_sum.differs | read.differs;
        plain_sum.terms = plain_sum.terms | read.terms;
      }
      all.differs = all.differs | read.differs;
      all.terms = all.terms | read.terms;
      if (IsSummed(op, access.operand)) all.terms = all.terms | read.differs;
    }
    all.differs = (all.differs | MadeOther(op)) - MadeSame(op);
    if (const auto* sum = std::get_if<AllReduceOp<View>>(&op))
      all.terms = all.terms - mesh_.Wide(sum->axes);
    for (const CellAccess& access : accesses) {
      if (access.effect == Effect::kRead) continue;
      const Found found = access.effect == Effect::kScratch ? Found()
                          : IsPlainSum(op, access.operand)  ? plain_sum
                                                            : all;
      differs_.Fill(access.cells, found.differs);
      terms_.Fill(access.cells, found.terms);
    }
  }

  void Set(const ByteRange& bytes, AxisSet axes) { differs_.Fill(table_.CellsIn(bytes), axes); }

  const StepPlan& plan_;
  const Mesh& mesh_;
  const AxisSet together_;
  const AccessTable& table_;
  // The axes along which ranks hold other things there; along which what they hold is a term of a
  // sum.
  IdVector<CellId, AxisSet> differs_, terms_;
};

}  // namespace

void FindAnswerViolations(const StepPlan& plan, const Mesh& mesh, int accumulate,
                          Violations* found) {
  const AxisSet together = mesh.Wide(AxisSet::All() - kDataAxes);
  if (together.empty() || !TakesRows(plan)) return;
  const AccessTable table(plan, mesh, accumulate, {0},
                          found);  // which cells differ is alike on all
  if (!found->empty()) return;
  AnswerWalk walk(plan, mesh, together, table);
  walk.Run(plan.prologue);
  walk.Run(plan.schedule);
  walk.Run(plan.schedule);  // with what the first has left in caches
  walk.CheckOutputs(found);
}

}  // namespace millrace
