// One op of a plan: a kernel op or collective over plan views, with the stream that issues it.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kernels/ops/model_ops.h"
#include "kernels/ops/step_ops.h"
#include "runtime/plan/view.h"

namespace millrace {

using KernelOp =
    std::variant<EmbedOp<View>, EmbedGradOp<View>, NormOp<View>, NormGradOp<View>, MatmulOp<View>,
                 ColumnSumOp<View>, RopeTableOp<View>, RopeOp<View>, AttentionOp<View>,
                 AttentionGradOp<View>, AddOp<View>, ActivationOp<View>, ActivationGradOp<View>,
                 CrossEntropyOp<View>, SelectRowOp<View>, CastOp<View>, ConcatOp<View>,
                 AccumulateOp<View>, ZeroRangesOp<View>, FiniteScanOp<View>, SumSquaresOp<View>,
                 BeginStepOp<View>, StepStatsOp<View>, AdamWOp<View>, AllGatherOp<View>,
                 ReduceScatterOp<View>, AllReduceOp<View>>;

// f(view, access, operand name) for each present operand.
template <class F>
void ForEachUse(const KernelOp& op, F&& f) {
  std::visit(
      [&](const auto& typed) {
        std::decay_t<decltype(typed)>::Visit(
            typed, [&](const View& view, Access access, std::string_view name) {
              if (view) f(view, access, name);
            });
      },
      op);
}

// f(view&, access, operand name) for each present operand, which it may replace.
template <class F>
void ForEachView(KernelOp& op, F&& f) {
  std::visit(
      [&](auto& typed) {
        std::decay_t<decltype(typed)>::Visit(typed,
                                             [&](View& view, Access access, std::string_view name) {
                                               if (view) f(view, access, name);
                                             });
      },
      op);
}

inline std::string_view OpName(const KernelOp& op) {
  return std::visit(
      [](const auto& typed) -> std::string_view { return std::decay_t<decltype(typed)>::kName; },
      op);
}

inline bool IsCollective(const KernelOp& op) {
  return std::holds_alternative<AllGatherOp<View>>(op) ||
         std::holds_alternative<ReduceScatterOp<View>>(op) ||
         std::holds_alternative<AllReduceOp<View>>(op);
}

enum class StreamId : int8_t { kCompute = 0, kGather = 1, kReduce = 2 };
inline constexpr int kStreams = 3;
std::string_view Name(StreamId stream);

struct PlanOp {
  KernelOp op;
  StreamId stream = StreamId::kCompute;
  std::string label;  // "h.3/attn.qkv", unique enough to find the op in a trace
  UnitId unit;        // the unit it works for; none for the step's own ops
};

}  // namespace millrace
