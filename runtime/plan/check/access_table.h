// What each op of a plan touches on a rank, byte for byte: the facts that the checker and the
// shadow memory reason about. Shares no code with the planner that it helps to prove.
//
// Cells    The arena cut at every first and last byte that some op touches; an access is a range of
//          cells. Between two cuts nothing differs.
// Exact    Rank strides are resolved for the rank; an all-gather in place reads the rank's own
//          slice only; zeroing touches its ranges only.
//          Microbatch strides and token parities widen an access to all of them. A strided
//          view counts as its span, a read one as all of it. Where the views that an op writes in
//          a buffer do not fill that span together, each is columns of it (kPart), or, if its rows
//          do not lie at one distance each, the bytes must be defined before.
// Ranks    Of several ranks, the first has a cell for every byte. Each other has cells of its own
//          for those bytes alone that some op touches there otherwise than on the first: of all
//          others it has the same accesses, in the same order, and what holds for the first holds
//          for it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/check/part_cover.h"
#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

enum class Effect : int8_t {
  kRead,     // contents must be defined
  kDefine,   // written: contents are defined afterwards
  kPart,     // columns are written, the others keep what they hold
  kScratch,  // written: contents are undefined afterwards
};

struct CellAccess {
  BufferId buffer;
  int32_t interval = 0;  // which of the buffer's live ranges holds the op's position
  IdRange<CellId> cells;
  Effect effect = Effect::kRead;
  int32_t columns = -1;      // AccessTable::ColumnsOf, of kPart
  std::string_view operand;  // static storage
};

class AccessTable {
 public:
  // `ranks`, at least one, in [0, mesh.world()). Accesses that make no sense (outside
  // buffer, arena or live range; operands that overlap) are appended to `problems` and left out.
  AccessTable(const StepPlan& plan, const Mesh& mesh, int accumulate, std::vector<int> ranks,
              Violations* problems);

  // Of each rank reads first.
  std::span<const CellAccess> of(int body, int op) const {
    const size_t i = static_cast<size_t>(first_op_[static_cast<size_t>(body)] + op);
    return std::span(accesses_).subspan(static_cast<size_t>(starts_[i]),
                                        static_cast<size_t>(starts_[i + 1] - starts_[i]));
  }
  // In the bytes of cells.
  const Columns& ColumnsOf(const CellAccess& part) const {
    return columns_[static_cast<size_t>(part.columns)];
  }
  size_t cells() const { return cuts_.size() == 0 ? 0 : cuts_.size() - 1; }
  // Ranges for CellsIn that are these bytes of the arena on the k-th rank; of the first, the same.
  std::vector<ByteRange> On(size_t k, const ByteRange& range) const;
  // Those that begin in the bytes.
  IdRange<CellId> CellsIn(const ByteRange& range) const;
  // Of a rank other than the first, not those of the arena: they lie behind it.
  ByteRange bytes(CellId cell) const { return {cuts_[cell], cuts_[CellId{cell.value + 1}]}; }
  const std::vector<int>& ranks() const { return ranks_; }
  // The rank of a cell and its bytes of the arena.
  std::pair<int, ByteRange> PlaceOf(CellId cell) const {
    const auto [begin, end] = bytes(cell);
    const int64_t k = begin / span_;
    return {ranks_[static_cast<size_t>(k)], {begin - k * span_, end - k * span_}};
  }

 private:
  // All accesses, without their cells; the bytes of each.
  std::vector<ByteRange> Collect(const StepPlan& plan, const Mesh& mesh, int accumulate,
                                 Violations* problems);
  ByteRange Shifted(const ByteRange& range, size_t k) const {
    const int64_t by = static_cast<int64_t>(k) * span_;
    return {range.begin + by, range.end + by};
  }

  const std::vector<int> ranks_;
  const int64_t span_;                         // from the bytes of one rank to those of the next
  std::vector<std::vector<ByteRange>> apart_;  // by rank: bytes with cells of its own, ascending
  IdVector<CellId, int64_t> cuts_;             // the last ends the last cell
  std::vector<CellAccess> accesses_;           // by body, op
  std::vector<Columns> columns_;
  std::vector<int32_t> starts_;    // by op, laid end to end
  std::vector<int32_t> first_op_;  // by body
};

// "forward.first 3: compute matmul h.0/attn.qkv".
std::string DescribeAt(const StepPlan& plan, int body, int op);

}  // namespace millrace
