#include "runtime/plan/check/checker_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/check/access_table.h"
#include "runtime/plan/check/checker_row_starts.h"

namespace millrace {
namespace {

struct Rows {
  AxisSet cut;   // by these axes
  AxisSet away;  // of other ranks along these
  bool operator==(const Rows&) const = default;
};
using Cut = std::optional<Rows>;  // none: no rows of sequences, or not known

std::string ToString(const Rows& rows) {
  return ToString(rows.cut) +
         (rows.away.empty() ? "" : fmt::format(", away over {}", ToString(rows.away)));
}

// Outputs of an op on rows that are no longer rows, but sums over them: what contributions are
// added to.
std::vector<std::string_view> SumsOf(KernelOp op) {
  std::vector<std::string_view> sums;
  ForEachView(op, [&](View&, const Update* update, std::string_view name) {
    if (update != nullptr) sums.push_back(name);
  });
  return sums;
}

// Are all axes of `inner` within all of `outer`?
bool Within(AxisSet inner, AxisSet outer) {
  for (const Axis i : kAxes)
    for (const Axis o : kAxes)
      if (inner.Has(i) && outer.Has(o) && i <= o) return false;
  return true;
}

class RowWalk {
 public:
  // `sequences`: the axes over which sequences are split.
  RowWalk(const StepPlan& plan, const Mesh& mesh, AxisSet sequences, const AccessTable& table,
          Violations* found)
      : plan_(plan),
        mesh_(mesh),
        sequences_(sequences),
        table_(table),
        found_(found),
        cuts_(table.cells()),
        buffers_(table.cells()),
        walked_(plan.bodies.size()) {}

  // Each body once: it does the same for every microbatch.
  void Run(const std::vector<Entry>& schedule) {
    for (const Entry& entry : schedule) {
      const auto body = static_cast<size_t>(entry.body);
      if (walked_[body]) continue;
      walked_[body] = true;
      const std::vector<PlanOp>& ops = plan_.bodies[body].ops;
      for (size_t o = 0; o < ops.size() && found_->empty(); ++o) {
        body_ = entry.body;
        op_ = static_cast<int>(o);
        Step(ops[o].op);
      }
    }
  }

 private:
  void Report(std::string text) {
    if (found_->empty())
      found_->push_back(
          {ViolationKind::kRows, fmt::format("{}: {}", DescribeAt(plan_, body_, op_), text)});
  }

  void Step(const KernelOp& op) {
    if (const auto* embed = std::get_if<EmbedOp<View>>(&op))
      Define(OriginOf(*embed));
    else if (const auto* gradient = std::get_if<EmbedGradOp<View>>(&op))
      EmbedGradient(*gradient);
    else if (const auto* gather = std::get_if<AllGatherOp<View>>(&op))
      Gather(gather->axes, gather->shard ? "shard" : "full");
    else if (const auto* scatter = std::get_if<ReduceScatterOp<View>>(&op))
      Scatter(scatter->axes);
    else if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op))
      Exchange(exchange->axes);
    else if (const auto* forward = std::get_if<AttentionOp<View>>(&op))
      Attention(forward->rows);
    else if (const auto* backward = std::get_if<AttentionGradOp<View>>(&op))
      Attention(backward->rows);
    else if (std::holds_alternative<MatmulOp<View>>(op))
      Matmul();
    else if (std::holds_alternative<ColumnSumOp<View>>(op))
      Define(std::nullopt);
    else
      Define(Common([](std::string_view) { return true; }), SumsOf(op));
  }

  // The host gives each rank the tokens of its rows of each sequence; ops take some of these.
  template <class Op>
  Cut OriginOf(const Op& op) const {
    return Rows{mesh_.Wide(op.row_begin.axes) | sequences_, {}};
  }

  template <class Op>
  void EmbedGradient(const Op& op) {
    const Cut rows = Of("d_out");
    if (rows && rows != OriginOf(op))
      Report(fmt::format("d_out has rows cut by {}, those of the tokens are cut by {}",
                         ToString(*rows), ToString(*OriginOf(op))));
    Define(std::nullopt);
  }

  void Gather(AxisSet axes, std::string_view operand) {
    const Cut rows = Of(operand);
    if (!rows) return Define(std::nullopt);
    axes = mesh_.Wide(axes);
    if ((rows->cut & axes) != axes || !Within(axes, rows->cut - axes) || !rows->away.empty())
      Report(
          fmt::format("gathers rows over {} that are cut by {}", ToString(axes), ToString(*rows)));
    Define(Rows{rows->cut - axes, {}});
  }

  void Scatter(AxisSet axes) {
    const Cut rows = Of("full");
    if (!rows) return Define(std::nullopt);
    axes = mesh_.Wide(axes);
    if (!(axes & kDataAxes).empty() || !Within(axes, rows->cut) || !rows->away.empty())
      Report(fmt::format("sums rows over {} that are cut by {}", ToString(axes), ToString(*rows)));
    Define(Rows{rows->cut | axes, {}});
  }

  // Rows of other sequences, or other rows of the same, cut in the same way.
  void Exchange(AxisSet axes) {
    Cut rows = Of("sent");
    if (!rows) return Define(std::nullopt);
    axes = mesh_.Wide(axes);
    if (!(axes - kDataAxes - rows->cut).empty())
      Report(fmt::format("exchanges rows over {} that are cut by {}: ranks have the same ones",
                         ToString(axes), ToString(*rows)));
    if (!rows->away.empty() && rows->away != axes)
      Report(fmt::format("exchanges rows over {} that are away over {}", ToString(axes),
                         ToString(rows->away)));
    rows->away = rows->away.empty() ? axes : AxisSet();
    Define(rows);
  }

  // Each query sees keys of all ranks that have rows of its sequence.
  void Attention(const ContextRows& split) {
    const AxisSet axes = split.split() ? mesh_.Wide(split.first.axes) : AxisSet();
    const auto of_all = [](std::string_view name) {
      return name == "k" || name == "v" || name == "d_k" || name == "d_v";
    };
    const Cut rows = Common([&](std::string_view name) { return !of_all(name); });
    const Cut keys = Common(of_all);
    if (!rows) return Define(std::nullopt);
    const Rows whole{rows->cut - axes, rows->away};
    if ((rows->cut & axes) != axes || (keys && *keys != whole) || !rows->away.empty())
      Report(
          fmt::format("queries are cut by {} and keys by {}, of sequences that are split over {}",
                      ToString(*rows), ToString(keys.value_or(*rows)), ToString(axes)));
    for (const CellAccess& access : Accesses())
      Set(access, of_all(access.operand) ? Cut(whole) : rows);
  }

  // Rows by a weight are rows, rows by rows a sum over them.
  void Matmul() {
    const Cut a = Of("a"), b = Of("b");
    if (a && b && *a != *b)
      Report(fmt::format("a product over rows, of which a's are cut by {} and b's by {}",
                         ToString(*a), ToString(*b)));
    if (a && b) return Define(std::nullopt);
    Define(Common([](std::string_view name) { return name != "bias"; }));
  }

  std::span<const CellAccess> Accesses() const { return table_.of(body_, op_); }

  Cut Of(std::string_view operand) {
    return Common([&](std::string_view name) { return name == operand; });
  }

  // The one cut of all rows that the op reads through the operands that `wanted` accepts.
  template <class Wanted>
  Cut Common(Wanted wanted) {
    Cut common;
    std::string_view first;
    for (const CellAccess& access : Accesses()) {
      const bool part = access.effect == Effect::kPart;
      if ((access.effect != Effect::kRead && !part) || !wanted(access.operand)) continue;
      for (const CellId c : access.cells) {
        // Columns are of the rows that the buffer's other ones are of.
        if (part && buffers_[c] != access.buffer) continue;
        const Cut& cut = cuts_[c];
        if (!cut || cut == common) continue;
        if (common)
          Report(fmt::format("{} has rows cut by {}, but {} by {}", access.operand, ToString(*cut),
                             first, ToString(*common)));
        common = cut;
        first = access.operand;
      }
    }
    return common;
  }

  void Define(const Cut& cut, const std::vector<std::string_view>& sums = {}) {
    for (const CellAccess& access : Accesses()) {
      const bool sum = std::find(sums.begin(), sums.end(), access.operand) != sums.end();
      Set(access, sum ? std::nullopt : cut);
    }
  }
  void Set(const CellAccess& access, const Cut& cut) {
    if (access.effect == Effect::kRead) return;
    cuts_.Fill(access.cells, access.effect == Effect::kScratch ? std::nullopt : cut);
    buffers_.Fill(access.cells, access.buffer);
  }

  const StepPlan& plan_;
  const Mesh& mesh_;
  const AxisSet sequences_;
  const AccessTable& table_;
  Violations* found_;
  IdVector<CellId, Cut> cuts_;
  IdVector<CellId, BufferId> buffers_;  // written last
  std::vector<bool> walked_;
  int body_ = 0, op_ = 0;
};

bool Exchanges(const StepPlan& plan) {
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (std::holds_alternative<AllToAllOp<View>>(op.op)) return true;
  return false;
}

}  // namespace

void FindRowViolations(const StepPlan& plan, const Mesh& mesh, int accumulate, Violations* found) {
  if (mesh.Wide(AxisSet::All() - kDataAxes).empty() && !Exchanges(plan)) return;
  const AxisSet sequences = FindRowStarts(plan, mesh, found);
  const AccessTable table(plan, mesh, accumulate, {0}, found);  // of any rank: cuts are of all
  if (!found->empty()) return;
  RowWalk walk(plan, mesh, sequences, table, found);
  walk.Run(plan.prologue);
  walk.Run(plan.schedule);
}

}  // namespace millrace
