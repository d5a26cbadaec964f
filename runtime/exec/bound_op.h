// A plan's op with addresses: what an executor issues. Binding is pure arithmetic on views; running
// is one call into the kernel table or a communicator. Both are the same for the eager walk, the
// recorded replay and a captured graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "comm/comm_set.h"
#include "kernels/ops/kernel_table.h"
#include "runtime/exec/kernel_counters.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

using BoundOp = AnyOp<TensorView>;

// Where a plan's bytes are for one rank.
struct Binding {
  const StepPlan* plan = nullptr;
  std::byte* arena = nullptr;
  Mesh mesh;
  int rank = 0;  // of the world
};

// The view's address for this rank, at `position` on the canonical timeline: body.begin + index of
// the op.
TensorView BindView(const Binding& binding, const View& view, int64_t position, int microbatch);
// All views, and the integers that depend on the rank (RankInt), for this rank.
BoundOp BindOp(const Binding& binding, const KernelOp& op, int64_t position, int microbatch);

struct BoundOperand {
  std::byte* data = nullptr;  // null: absent
  std::string_view name;
};
// All operands in the op's order, absent ones too.
std::vector<BoundOperand> OperandsOf(const BoundOp& op);

// The first operand of `now` that is somewhere else than in `then`, as text with both addresses; ""
// when all are where they were. Both are bindings of one op.
std::string MovedOperand(const BoundOp& then, const BoundOp& now);

// Issues one op on `stream`, which is the plan's `id`; a collective goes to the communicator of its
// axes and that stream.
void RunOp(const BoundOp& op, const KernelTable& kernels, const CommSet& comms,
           KernelCounters& counters, StreamId id, Stream& stream);

}  // namespace millrace
