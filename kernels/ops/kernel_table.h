// The border between plans and devices: one table of functions per backend, one entry per kernel op
// of op_list.h, called by its name or by its op: table.norm(op, stream) or table(op, stream). Both
// backends fill every entry; kernels/cpu is the reference.
//
// Streams  An entry enqueues on `stream` and returns; operands are touched in stream order. A host
//          stream has run the op on return.
// Errors   Plans are checked before they run; an entry that is given what its op does not allow
//          throws Error(kInternal) naming both values.
// Threads  Entries may be called from several threads at once on disjoint operands (ranks as
//          threads); they keep no state.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/ops/op_list.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

template <template <class> class Op>
using KernelFn = void (*)(const Op<TensorView>&, Stream&);

struct KernelTable {
#define MILLRACE_ENTRY(Name, entry)   \
  KernelFn<Name##Op> entry = nullptr; \
  void operator()(const Name##Op<TensorView>& op, Stream& stream) const { entry(op, stream); }
  MILLRACE_KERNEL_OPS(MILLRACE_ENTRY)
#undef MILLRACE_ENTRY

  // As many of the first of `ops`, which stand one behind the other on `stream`, as the backend has
  // one launch for, with the bits of each by itself; returns how many it took. 0: it took none, as
  // they are better one at a time. `next`: those that come behind these and whatever lies between,
  // of which weights may be fetched into a cache.
  size_t (*row_linears)(std::span<const RowLinearOp<TensorView>* const> ops,
                        std::span<const RowLinearOp<TensorView>* const> next,
                        Stream& stream) = nullptr;
};

}  // namespace millrace
