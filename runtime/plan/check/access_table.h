// What each op of a plan touches on one rank, byte for byte: the facts that the checker and the
// shadow memory reason about. Shares no code with the planner that it helps to prove.
//
// Cells    The arena cut at every first and last byte that some op touches; an access is a range of
//          cells. Between two cuts nothing differs.
// Exact    Rank strides are resolved for the rank; an all-gather in place reads the rank's own
//          slice only; zeroing touches its ranges only.
//          Microbatch strides and token parities widen an access to all of them. A strided
//          view counts as its span: if the views that an op writes in a buffer do not fill that
//          span together, the bytes must be defined before.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

enum class Effect : int8_t {
  kRead,     // contents must be defined
  kDefine,   // written: contents are defined afterwards
  kScratch,  // written: contents are undefined afterwards
};

struct CellAccess {
  int32_t buffer = -1;
  int32_t interval = 0;        // which of the buffer's live ranges holds the op's position
  int32_t begin = 0, end = 0;  // cells
  Effect effect = Effect::kRead;
  std::string_view operand;  // static storage
};

class AccessTable {
 public:
  // `rank` in [0, mesh.world()). Accesses that make no sense (outside buffer, arena or live range;
  // operands that overlap) are appended to `problems` and left out.
  AccessTable(const StepPlan& plan, const Mesh& mesh, int accumulate, int rank,
              Violations* problems);

  // Reads first.
  std::span<const CellAccess> of(int body, int op) const {
    const size_t i = static_cast<size_t>(first_op_[static_cast<size_t>(body)] + op);
    return std::span(accesses_).subspan(static_cast<size_t>(starts_[i]),
                                        static_cast<size_t>(starts_[i + 1] - starts_[i]));
  }
  int cells() const { return static_cast<int>(cuts_.empty() ? 0 : cuts_.size() - 1); }
  // [first, last) of the cells that begin in the bytes.
  std::pair<int, int> CellsIn(const ByteRange& range) const;
  // Bytes of the arena.
  ByteRange bytes(int cell) const {
    return {cuts_[static_cast<size_t>(cell)], cuts_[static_cast<size_t>(cell) + 1]};
  }

 private:
  std::vector<int64_t> cuts_;
  std::vector<CellAccess> accesses_;  // by body, op
  std::vector<int32_t> starts_;       // by op, laid end to end
  std::vector<int32_t> first_op_;     // by body
};

// Numbers the stays of buffers while bodies are walked in schedule order. A stay is a time during
// which a buffer keeps its contents: one live range, or several that meet where one body follows
// another (live at the end of the one and at the beginning of the other).
class StayTracker {
 public:
  explicit StayTracker(const StepPlan& plan);

  void Enter(int body);
  // The stay that an access of the entered body belongs to. A state has one,
  // numbered as its buffer.
  int32_t StayOf(const CellAccess& access);
  // The buffer's latest stay, of all entries so far; -1: none.
  int32_t Latest(int32_t buffer) const;
  // Does the buffer's latest stay outlast the body entered last?
  bool Continues(int32_t buffer) const;
  int32_t count() const { return next_; }
  int32_t entered() const { return static_cast<int32_t>(entered_.size()); }

  // Is this tracker what `before` was, with stays from `stay` on moved on by as many as have been
  // numbered since, and entries from `entry` on by as many as have been entered? Then the same
  // bodies number their stays alike again.
  bool IsShifted(const StayTracker& before, int32_t stay, int32_t entry) const;

 private:
  struct Last {
    int32_t entry = -1, interval = -1, stay = -1;
    bool operator==(const Last&) const = default;
  };
  bool LiveThroughEnd(int32_t buffer, const Last& last) const;
  bool LiveAllThrough(int32_t buffer, int body) const;

  const StepPlan* plan_;
  std::vector<int32_t> entered_;  // bodies, in order
  std::vector<Last> last_;        // by buffer
  int32_t next_;
};

// "forward.first 3: compute matmul h.0/attn.qkv".
std::string DescribeAt(const StepPlan& plan, int body, int op);

}  // namespace millrace
