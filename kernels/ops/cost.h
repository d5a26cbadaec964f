// What an op needs and costs, from shapes alone: no device, so a laptop can plan for an H200.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/ops/access.h"
#include "kernels/ops/attention_ops.h"
#include "kernels/ops/cache_ops.h"
#include "kernels/ops/expert_exchange_ops.h"
#include "kernels/ops/fp8_flat_ops.h"
#include "kernels/ops/fp8_ops.h"
#include "kernels/ops/loss_ops.h"
#include "kernels/ops/mamba_ops.h"
#include "kernels/ops/model_ops.h"
#include "kernels/ops/moe_ops.h"
#include "kernels/ops/muon_ops.h"
#include "kernels/ops/router_ops.h"
#include "kernels/ops/row_linear_ops.h"
#include "kernels/ops/sample_ops.h"
#include "kernels/ops/shape.h"
#include "kernels/ops/step_ops.h"
#include "runtime/base/policies.h"

namespace millrace {

enum class Backend { kCpu, kCuda };

// Scratch the backend needs for the op, in bytes; 0: no scratch operand. kCpu: exact,
// kernels/ops/cpu_blocking.h. kCuda: what kernels/cuda may use at most.
int64_t WorkspaceBytes(const EmbedGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const HeadNormGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const MatmulOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const BatchedMatmulOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const ColumnSumOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const AttentionOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const AttentionGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const CachedAttentionOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const SsdScanRowsOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const CrossEntropyOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const MambaConvGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const SsdScanOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const SsdScanGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const GatedNormGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const FiniteScanOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const SumSquaresOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const MuonNormaliseOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const ExpertSlotsOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const RouterStatsOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const GroupedMatmulOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const GroupedWeightGradOp<Shape>& op, Backend backend);

// Of norm_grad's partials, which themselves do not matter here: as many blocks as the backend deals
// the rows to, of so many sums each.
Layout NormPartialsLayout(const NormGradOp<Shape>& op, int64_t sums, Backend backend);

// Bytes of an f32 product that the backend forms in scratch, for a second kernel to add to `out`:
// what a concat of such a temporary would read. 0: the product goes to `out` itself, or by tiles
// that stay in a cache. CUDA stages products that round once to bf16 (MatmulRoute::kWhole).
int64_t StagedBytes(const MatmulOp<Shape>& op, Backend backend);

// The widest head that attention and its norms take.
int64_t MostHeadDim(Backend backend);

// "" when the backend runs the op with these shapes and dtypes; else the
// reason, naming value and limit.
std::string WhyUnsupported(const QuantizeOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const MatmulOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const AttentionOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const CachedAttentionOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const RopeOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const RowLinearOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const MambaConvOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const SsdScanOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const GatedNormOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const HeadNormOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const RouteOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const GroupedMatmulOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const GroupedWeightGradOp<Shape>& op, Backend backend);

// Arithmetic: a multiply-add is 2 FLOPs. Causal attention counts the lower
// triangle only, T*(T+1)/2 pairs; of sequences split over ranks, the pairs of this rank's queries.
double Flops(const MatmulOp<Shape>& op);
double Flops(const BatchedMatmulOp<Shape>& op);
double Flops(const AttentionOp<Shape>& op);          // 2 GEMMs over the triangle
double Flops(const AttentionGradOp<Shape>& op);      // 5 GEMMs over the triangle
double Flops(const GroupedMatmulOp<Shape>& op);      // of the slots that are expected to be live
double Flops(const GroupedWeightGradOp<Shape>& op);  // likewise
double Flops(const AttentionOp<Shape>& op);          // 2 GEMMs over the triangle
double Flops(const AttentionGradOp<Shape>& op);      // 5 GEMMs over the triangle
// The products of matrices that chunks of a scan are: of pairs of positions of a chunk the lower
// triangle only, and what a group's heads share once per group.
double Flops(const SsdScanOp<Shape>& op);
double Flops(const SsdScanGradOp<Shape>& op);
double Flops(const SsdScanRowsOp<Shape>& op);      // the recurrence's
double Flops(const CachedAttentionOp<Shape>& op);  // of rows at half their length, the mean
double Flops(const RowLinearOp<Shape>& op);        // the product's

namespace internal {

template <template <class> class Op, template <class> class... Ops>
inline constexpr bool kIsOneOf = (std::is_same_v<Op<Shape>, Ops<Shape>> || ...);

// Rough arithmetic per element of an op's largest operand, for the ops whose time is their memory
// traffic: an exponential counts 16, a division or square root 4. Ops that only move bytes count 0.
template <template <class> class Op>
constexpr double FlopsPerElement() {
  if (kIsOneOf<Op, EmbedOp, EmbedRowsOp, EmbedGradOp, NormSumsOp, ColumnSumOp, AddOp, AddBiasOp,
               ConcatOp, AccumulateOp, FiniteScanOp, ReduceScatterOp, AllReduceOp, ExpertSlotsOp,
               CombineOp, ExpertPiecesOp, ReceivedSlotsOp, RouterBalanceOp, ExpertLoadOp>)
    return 1;
  if (kIsOneOf<Op, SumSquaresOp, StepStatsOp, ShardMagnitudesOp>) return 2;
  if (kIsOneOf<Op, RopeOp, RopeRowsOp, RouterBiasOp, MuonNormaliseOp, MuonUpdateOp>) return 3;
  if (kIsOneOf<Op, MuonMomentumOp>) return 5;
  if (kIsOneOf<Op, NormOp, HeadNormOp, QuantizeOp, ShardQuantizeOp>) return 8;
  if (kIsOneOf<Op, NormGradOp, HeadNormGradOp>) return 16;
  if (kIsOneOf<Op, MambaConvOp, MambaConvRowsOp>) return 30;
  if (kIsOneOf<Op, GatedNormOp>) return 30;
  if (kIsOneOf<Op, GatedNormGradOp>) return 48;
  if (kIsOneOf<Op, MambaConvGradOp>) return 56;
  if (kIsOneOf<Op, AdamWOp>) return 20;
  if (kIsOneOf<Op, ActivationOp, ExpertActivationOp>) return 26;
  if (kIsOneOf<Op, ActivationGradOp, ExpertActivationGradOp>) return 32;
  if (kIsOneOf<Op, RouteOp, RouteGradOp, RouterStatsOp>) return 40;
  if (kIsOneOf<Op, CrossEntropyOp, SampleOp>) return 40;
  if (kIsOneOf<Op, RopeTableOp>) return 64;
  return 0;
}

// Elements of an operand that the op touches: of a table what it looks up, of slots those that are
// expected to be live.
template <template <class> class Op>
int64_t TouchedNumel(const Op<Shape>& op, const Shape& operand) {
  const int64_t numel = operand.layout.numel();
  if constexpr (kIsOneOf<Op, EmbedOp, EmbedRowsOp>)
    if (&operand == &op.table) return std::min(numel, op.out.layout.numel());
  if constexpr (kIsOneOf<Op, SelectRowOp>)
    if (&operand == &op.x) return op.out.layout.numel();
  if constexpr (kIsOneOf<Op, CombineOp>)
    if (&operand == &op.y) return std::min(numel, op.slots.layout.numel() * operand.layout.dims[1]);
  if constexpr (requires { op.expected; }) {
    const int64_t rows = operand.layout.dims[0];
    if (op.expected == 0 || op.expected >= rows) return numel;
    bool slots = false;
    Op<Shape>::VisitSlots(op, [&](const Shape& of) { slots |= &of == &operand; });
    if constexpr (kIsOneOf<Op, DispatchOp>) {
      // Of rows that go one by one only those that have a slot are read; without a count of live
      // slots all are written.
      if (&operand == &op.x) slots = op.top_k == 1;
      if (!op.offsets && &operand != &op.x) slots = false;
    }
    if (slots) return numel / rows * op.expected;
  }
  return numel;
}

// The same of an operand that the op writes: rows of a cache are read by all that see them, and
// written once.
template <template <class> class Op>
int64_t WrittenNumel(const Op<Shape>& op, const Shape& operand) {
  if constexpr (kIsOneOf<Op, CachedAttentionOp>)
    if (&operand == &op.cache) return op.x.layout.numel();
  return TouchedNumel(op, operand);
}

}  // namespace internal

struct OpCost {
  double flops = 0;
  // Memory traffic if every operand is touched once; scratch is not counted.
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
};

// For any op: bytes are numel * element size of the present operands, by access.
template <template <class> class Op>
OpCost Cost(const Op<Shape>& op) {
  OpCost cost;
  int64_t largest = 0;
  Op<Shape>::Visit(op, [&](const Shape& operand, Access access, std::string_view) {
    if (!operand || access == Access::kScratch) return;
    const int64_t numel = internal::TouchedNumel(op, operand);
    largest = std::max(largest, numel);
    const int64_t size = Bytes(operand.layout.dtype);
    if (Reads(access)) cost.read_bytes += numel * size;
    if (Writes(access)) cost.write_bytes += internal::WrittenNumel(op, operand) * size;
  });
  if constexpr (requires { Flops(op); })
    cost.flops = Flops(op);
  else
    cost.flops = internal::FlopsPerElement<Op>() * static_cast<double>(largest);
  return cost;
}

}  // namespace millrace
