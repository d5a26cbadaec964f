// One op of a plan: a kernel op or collective over plan views, with the stream that issues it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/ops/op_list.h"
#include "runtime/base/stream_id.h"
#include "runtime/plan/view.h"

namespace millrace {

// Who tallies in a step, and so what its numbers are: RouterStatsOp's stats, or PolicyTally.
enum class TallyKind { kRouter, kPolicy };

// What an op does, over plan views.
using KernelOp = AnyOp<View>;

namespace internal {

// Calls f(context, ...) for each present operand. Compiled once, as AnyOp's members are.
void VisitUses(const KernelOp& op, void* context,
               void (*f)(void*, const View&, Access, std::string_view));
void VisitViews(KernelOp& op, void* context, void (*f)(void*, View&, Update*, std::string_view));

}  // namespace internal

// f(view, access, operand name) for each present operand.
template <class F>
void ForEachUse(const KernelOp& op, F&& f) {
  internal::VisitUses(op, const_cast<void*>(static_cast<const void*>(std::addressof(f))),
                      [](void* context, const View& view, Access access, std::string_view name) {
                        (*static_cast<std::remove_reference_t<F>*>(context))(view, access, name);
                      });
}

// f(view&, update, operand name) for each present operand, which it may replace. `update` is the
// operand's own, which it may set; null for what is never accumulated or always.
template <class F>
void ForEachView(KernelOp& op, F&& f) {
  internal::VisitViews(op, const_cast<void*>(static_cast<const void*>(std::addressof(f))),
                       [](void* context, View& view, Update* update, std::string_view name) {
                         (*static_cast<std::remove_reference_t<F>*>(context))(view, update, name);
                       });
}

std::string_view OpName(const KernelOp& op);
bool IsCollective(const KernelOp& op);

struct PlanOp {
  KernelOp op;
  StreamId stream = StreamId::kCompute;
  std::string label;        // "h.3/attn.qkv", unique enough to find the op in a trace
  UnitId unit;              // the unit it works for; none for the step's own ops
  bool recomputed = false;  // computes again, in the backward, what the forward computed
};

}  // namespace millrace
