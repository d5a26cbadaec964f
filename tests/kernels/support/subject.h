// A backend under test, and the way the contract suite runs one op of it.
//
// Run checks for every call, whatever the op:
//   - bytes that no written operand covers keep their value: read operands, the gaps of strided
//   views, slots that are not live, guards around each block;
//   - scratch is exactly WorkspaceBytes, starts as garbage, and the guards
//     around it keep their value;
//   - a second run at other addresses (shifted by the subject's alignment), with other garbage in
//     scratch and in the write-only operands, gives the same bits.
// Results are then in the host views of the op.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/ops/cost.h"
#include "kernels/ops/kernel_table.h"
#include "runtime/base/device.h"
#include "tests/kernels/support/memory.h"

namespace millrace::test {

struct Subject {
  const KernelTable& table;
  Device& device;
  Stream& stream;
  Backend backend;
  // What the backend may rely on for addresses of operands, in bytes. 0: each is
  // aligned to its elements only.
  int64_t alignment = 0;
};

namespace internal {

struct Operand {
  TensorView* view;  // in the op that will run; `data` is rewritten
  Access access;
  Layout touched;  // the part of it that the op may read and write
};

// The work of Run, for operands without scratch, which is `scratch_bytes` long. `call` runs the op
// on the rewritten views.
class Runner {
 public:
  Runner(const Subject& subject, Memory& memory, int64_t scratch_bytes)
      : subject_(subject), memory_(memory), scratch_bytes_(scratch_bytes) {}
  void Run(const std::vector<Operand>& operands, TensorView* scratch,
           const std::function<void()>& call);

 private:
  const Subject& subject_;
  Memory& memory_;
  int64_t scratch_bytes_;
};

}  // namespace internal

inline Shape ShapeOf(const TensorView& view) { return {view.layout, static_cast<bool>(view)}; }

// For a norm_grad whose other operands are there: `sums` of each block, 1 or 2.
inline TensorView NewPartials(Memory& memory, const NormGradOp<TensorView>& op, int64_t sums,
                              Backend backend) {
  const Layout layout =
      NormPartialsLayout(ConvertOp<NormGradOp, TensorView, Shape>(op, ShapeOf), sums, backend);
  return memory.New(layout.dtype, {layout.dims[0], layout.dims[1], layout.dims[2]});
}

// Runs entry(op) on the subject's device. The op's views lie in `memory`; its
// scratch is supplied here.
template <template <class> class Op>
void Run(const Subject& subject, Memory& memory, KernelFn<Op> entry, const Op<TensorView>& op) {
  Op<TensorView> bound = op;
  int64_t scratch_bytes = 0;
  TensorView* scratch = nullptr;
  if constexpr (requires { bound.scratch; }) {
    scratch_bytes = WorkspaceBytes(ConvertOp<Op, TensorView, Shape>(op, ShapeOf), subject.backend);
    scratch = &bound.scratch;
  }
  std::vector<internal::Operand> operands;
  Op<TensorView>::Visit(bound, [&](TensorView& view, Access access, std::string_view) {
    if (&view != scratch && view) operands.push_back({&view, access, view.layout});
  });
  if constexpr (requires { Op<TensorView>::VisitSlots(bound, [](TensorView&) {}); })
    if (op.offsets)
      Op<TensorView>::VisitSlots(bound, [&](TensorView& view) {
        for (internal::Operand& operand : operands)
          if (operand.view == &view)
            operand.touched.dims[0] = static_cast<int64_t>(Get(op.offsets, op.offsets.numel() - 1));
      });
  internal::Runner(subject, memory, scratch_bytes).Run(operands, scratch, [&] {
    entry(bound, subject.stream);
  });
}

}  // namespace millrace::test
