#include "runtime/plan/check/checker_overflow.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "runtime/plan/check/access_table.h"

namespace millrace {
namespace {

class OverflowWalk {
 public:
  OverflowWalk(const StepPlan& plan, const Mesh& mesh, Violations* found)
      : plan_(plan), mesh_(mesh), found_(found) {}

  void Run() {
    for (size_t e = 0; e < plan_.schedule.size() && found_->empty(); ++e) {
      const Entry& entry = plan_.schedule[e];
      const std::vector<PlanOp>& ops = plan_.body(entry).ops;
      for (size_t o = 0; o < ops.size() && found_->empty(); ++o) {
        at_ = {entry.body, static_cast<int>(o)};
        if (const auto* pieces = std::get_if<ExpertPiecesOp<View>>(&ops[o].op))
          Pieces(*pieces, entry.microbatch);
        else if (const auto* sum = std::get_if<AllReduceOp<View>>(&ops[o].op))
          Sum(*sum);
        else if (const auto* stats = std::get_if<StepStatsOp<View>>(&ops[o].op))
          Stats(*stats);
      }
    }
    for (const auto& [cell, count] : counts_)
      if (!count.heard)
        Report(fmt::format("no statistics read element {} of {}, which counts rows without room",
                           cell.second, plan_.buffer(cell.first).name));
  }

 private:
  using Cell = std::pair<BufferId, int64_t>;
  struct Count {
    int32_t microbatch = -1;  // the last one that was counted
    bool summed = false, heard = false;
  };

  void Report(const std::string& text) {
    if (found_->empty())
      found_->push_back({ViolationKind::kOverflow,
                         fmt::format("{}: {}", DescribeAt(plan_, at_.first, at_.second), text)});
  }

  // Of a rank's R rows a piece can have K each, or as many as there are experts for.
  void Pieces(const ExpertPiecesOp<View>& op, int32_t microbatch) {
    const auto& counts = op.counts.layout.dims;
    const auto& slots = op.piece_slots.layout.dims;
    const int64_t room = op.piece_pairs.layout.numel() / counts[0],
                  most = slots[0] * std::min(slots[1], counts[1]);
    if (!op.dropped) {
      if (room < most)
        Report(fmt::format(
            "{} rows can be for one rank, which has room for {}, and none is counted", most, room));
      return;
    }
    Count& count = counts_[{op.dropped.buffer, op.dropped.offset}];
    const bool first = count.microbatch < 0;
    if (first != (op.update == Update::kOverwrite))
      Report(first ? "adds rows without room to those of another step"
                   : "forgets rows without room of the microbatches before");
    if (count.microbatch == microbatch || count.summed)
      Report("counts rows without room twice, or behind their sum");
    count.microbatch = microbatch;
  }

  void Sum(const AllReduceOp<View>& op) {
    for (auto& [cell, count] : counts_) {
      if (!Holds(op.buffer, cell)) continue;
      const AxisSet all = mesh_.Wide(AxisSet::All());
      if (count.summed || mesh_.Wide(op.axes) != all)
        Report(fmt::format("sums rows without room over {}; once over {} is right",
                           ToString(op.axes), ToString(all)));
      count.summed = true;
    }
  }

  void Stats(const StepStatsOp<View>& op) {
    int64_t heard = 0;
    for (auto& [cell, count] : counts_) {
      if (!op.overflow || !Holds(op.overflow, cell)) continue;
      if (!count.summed && mesh_.world() > 1) Report("reads rows without room of this rank alone");
      count.heard = true;
      ++heard;
    }
    if (op.overflow && heard != op.overflow.layout.numel())
      Report(fmt::format("reads {} counts of rows without room, of which {} were counted",
                         op.overflow.layout.numel(), heard));
  }

  static bool Holds(const View& view, const Cell& cell) {
    return view.buffer == cell.first && view.offset <= cell.second &&
           cell.second < view.offset + view.layout.numel();
  }

  const StepPlan& plan_;
  const Mesh& mesh_;
  Violations* found_;
  std::map<Cell, Count> counts_;
  std::pair<int, int> at_;  // body, op
};

}  // namespace

void FindOverflowViolations(const StepPlan& plan, const Mesh& mesh, Violations* found) {
  OverflowWalk(plan, mesh, found).Run();
}

}  // namespace millrace
