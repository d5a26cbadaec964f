// Which ops the CUDA backend has for f16: what trains and evaluates models without experts and
// mixers. The CPU has them all.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/ops/op_list.h"
#include "kernels/ops/shape.h"

namespace millrace::cuda {

template <template <class> class Op, template <class> class... Ops>
inline constexpr bool kIsOneOf = (std::is_same_v<Op<Shape>, Ops<Shape>> || ...);

template <template <class> class Op>
inline constexpr bool kTakesFloat16 =
    kIsOneOf<Op, TakeInputOp, EmbedOp, EmbedGradOp, NormOp, NormGradOp, NormSumsOp, HeadNormOp,
             HeadNormGradOp, MatmulOp, ColumnSumOp, RopeTableOp, RopeOp, AttentionOp,
             AttentionGradOp, AddOp, AddBiasOp, CopyRowsOp, JoinColumnsOp, ActivationOp,
             ActivationGradOp, CrossEntropyOp, SelectRowOp, KeepRangeOp, CastOp, ConcatOp,
             AccumulateOp, ZeroRangesOp, FiniteScanOp, SumSquaresOp, BeginStepOp, StepStatsOp,
             AdamWOp, AllGatherOp, ReduceScatterOp, AllReduceOp, AllToAllOp>;

// Why the backend cannot run the op, where that is f16; "": it is not.
template <template <class> class Op>
std::string WhyNoFloat16(const Op<Shape>& op) {
  std::string why;
  if constexpr (!kTakesFloat16<Op>)
    Op<Shape>::Visit(op, [&](const Shape& operand, auto, std::string_view name) {
      if (operand && operand.layout.dtype == DType::kF16 && why.empty())
        why = std::string(Op<Shape>::kName) + ": " + std::string(name) +
              " is f16; f32 or bf16 is allowed on CUDA";
    });
  return why;
}

}  // namespace millrace::cuda
