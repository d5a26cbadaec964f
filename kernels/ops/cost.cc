#include "kernels/ops/cost.h"

#include <limits>
#include <utility>

#include "kernels/ops/attention_choice.h"
#include "kernels/ops/context_rows.h"
#include "kernels/ops/cpu_blocking.h"
#include "kernels/ops/cuda_blocking.h"
#include "kernels/ops/cuda_float8.h"
#include "kernels/ops/matmul_key.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

int64_t Dim(const Shape& s, int i) { return s.layout.dims[static_cast<size_t>(i)]; }
bool IsF32(const Shape& s) { return s.layout.dtype == DType::kF32; }

int64_t CpuBytes(const MatmulOp<Shape>& op) {
  const int64_t m = Dim(op.out, 0), n = Dim(op.out, 1), k = Dim(op.a, 1);
  if (m == 0 || n == 0) return 0;
  if (op.like_rows > 0)
    return cpu::AlikeBytes(op.like_rows, op.like_columns > 0 ? op.like_columns : n, k,
                           op.a.layout.dtype, op.b.layout.dtype, op.like_columns > 0);
  const cpu::MatmulBlocks tile = cpu::BlocksOfMatmul(m, n, k, op.a.layout.dtype, op.b.layout.dtype);
  int64_t floats = cpu::ProductInPlace(op.out.layout, op.update) ? 0 : tile.m * tile.n;
  if (!IsF32(op.a)) floats += tile.m * tile.k;
  if (!IsF32(op.b)) floats += tile.k * tile.n;
  return floats * 4;
}

// The first of its products.
MatmulOp<Shape> FirstProduct(const BatchedMatmulOp<Shape>& op) {
  MatmulOp<Shape> product;
  product.a = MatrixOf(op.a), product.b = MatrixOf(op.b), product.out = MatrixOf(op.out);
  return product;
}

// Pairs (t, u) of a query and a key that it sees, over batch rows and heads. With a window, ranks
// that share a sequence have not exactly equal shares of them: the mean.
template <class Op>
double PairsOf(const Op& op) {
  const auto heads = static_cast<double>(Dim(op.q, 0) * Dim(op.q, 2));
  const int64_t length = op.rows.ranks * Dim(op.q, 1);
  if (op.window <= 0 || op.window >= length)
    return heads * CausalPairs(op.rows.ranks, Dim(op.q, 1));
  const auto window = static_cast<double>(op.window), rows = static_cast<double>(length);
  return heads * (window * (window + 1) / 2 + (rows - window) * window) /
         static_cast<double>(op.rows.ranks);
}

// Scratch of attention: so many tiles of scores, and operands that pass through f32 buffers. Each
// buffer holds a block of queries or all keys of a head, whichever rank it is.
template <class Op>
int64_t CpuAttentionBytes(const Op& op, int64_t scores, std::initializer_list<const Shape*> queries,
                          std::initializer_list<const Shape*> keys) {
  const int64_t length = op.rows.ranks * Dim(op.q, 1), depth = Dim(op.q, 3),
                block = std::min(cpu::kAttentionRows, length);
  const auto buffered = [&](const Shape* s) {
    return !cpu::AttentionInPlace(s->layout.dtype, op.rows.split());
  };
  int64_t floats = scores * block * length;
  for (const Shape* s : queries) floats += buffered(s) ? block * depth : 0;
  for (const Shape* s : keys) floats += buffered(s) ? length * depth : 0;
  return floats * 4;
}

// Of `slots`, those that are expected to be live; 0: all.
double LiveShare(int64_t expected, int64_t slots) {
  return expected > 0 && expected < slots
             ? static_cast<double>(expected) / static_cast<double>(slots)
             : 1;
}

// The product of all slots with one expert's matrix: none of an expert's is larger.
MatmulOp<Shape> LargestProduct(const GroupedMatmulOp<Shape>& op) {
  MatmulOp<Shape> product;
  const Layout& b = op.b.layout;
  product.a = op.a, product.out = op.out;
  product.b = {{b.dtype, 2, {b.dims[1], b.dims[2]}, {b.strides[1], b.strides[2]}}, true};
  return product;
}
MatmulOp<Shape> LargestProduct(const GroupedWeightGradOp<Shape>& op) {
  MatmulOp<Shape> product;
  const auto transposed = [](Shape s) {
    std::swap(s.layout.dims[0], s.layout.dims[1]);
    std::swap(s.layout.strides[0], s.layout.strides[1]);
    return s;
  };
  product.a = transposed(op.d_out), product.b = op.a;
  product.out = {DenseLayout(op.out.layout.dtype, {Dim(op.out, 1), Dim(op.out, 2)}), true};
  product.update = op.update, product.rounding = Rounding::kOnce;
  return product;
}

}  // namespace

int64_t WorkspaceBytes(const EmbedGradOp<Shape>& op, Backend backend) {
  if (!op.d_table) return 0;
  if (backend == Backend::kCuda)
    return cuda::EmbedGradScratch{Dim(op.d_out, 0), Dim(op.d_table, 0), Dim(op.d_table, 1)}.bytes();
  // Rows sorted by token, and where each token's rows end.
  return (Dim(op.d_table, 0) + 1 + Dim(op.d_out, 0)) * 4;
}

Layout NormPartialsLayout(const NormGradOp<Shape>& op, int64_t sums, Backend backend) {
  const int64_t rows = Dim(op.x, 0), columns = Dim(op.x, 1);
  int64_t blocks = 1;
  if (backend == Backend::kCuda) {
    bool is_short = true;
    for (const Shape* view : {&op.d_out, &op.x, &op.d_bypass, &op.d_x})
      is_short = is_short && (!view->present || IsFloatOf16Bits(view->layout.dtype));
    blocks = cuda::NormGradBlocksFor(rows, cuda::NormGradShape(columns, is_short));
  }
  return DenseLayout(DType::kF64, {blocks, sums, columns});
}

int64_t WorkspaceBytes(const HeadNormGradOp<Shape>& op, Backend backend) {
  // On the CPU the two weights' sums, in double.
  const int64_t depth = Dim(op.q_weight, 0);
  return backend == Backend::kCpu ? 2 * depth * 8 : cuda::HeadNormGradBytes(depth);
}

int64_t WorkspaceBytes(const MatmulOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCpu) return CpuBytes(op);
  if (op.in_order) return 0;
  const int64_t product_bytes = op.out.layout.numel() * 4;
  switch (RouteOf(op)) {
    case MatmulRoute::kOneLaunch:
      return kMatmulWorkspaceBytes;
    case MatmulRoute::kWhole:
      return kMatmulWorkspaceBytes + product_bytes;
    case MatmulRoute::kTiles:
      return kMatmulWorkspaceBytes + std::min(product_bytes, kMatmulTileBytes);
  }
  return 0;
}

int64_t WorkspaceBytes(const BatchedMatmulOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCuda) return kMatmulWorkspaceBytes;
  MatmulOp<Shape> product = FirstProduct(op);
  if (!op.c) return CpuBytes(product);
  product.out.layout = DenseLayout(DType::kF32, {Dim(product.out, 0), Dim(product.out, 1)});
  return product.out.layout.numel() * 4 + CpuBytes(product);
}

int64_t StagedBytes(const MatmulOp<Shape>& op, Backend backend) {
  const bool stages = backend == Backend::kCuda && Dim(op.a, 1) > 0 && op.rounds_once() &&
                      RouteOf(op) == MatmulRoute::kWhole;
  return stages ? op.out.layout.numel() * 4 : 0;
}

int64_t WorkspaceBytes(const ColumnSumOp<Shape>& op, Backend backend) {
  return backend == Backend::kCpu ? 0 : cuda::ColumnSumBytes(Dim(op.x, 1));
}

int64_t WorkspaceBytes(const AttentionOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCuda) return cuda::AttentionBytes(op);
  return CpuAttentionBytes(op, 1, {&op.q, &op.out}, {&op.k, &op.v});
}

int64_t WorkspaceBytes(const CachedAttentionOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCuda) return 0;
  const int64_t depth = Dim(op.q, 2), block = std::min(cpu::kAttentionRows, op.length);
  return (block * op.length + 2 * (block + op.length) * depth) * 4;
}

int64_t WorkspaceBytes(const AttentionGradOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCuda) return cuda::AttentionBytes(op);
  return CpuAttentionBytes(op, 2, {&op.q, &op.d_out, &op.d_q}, {&op.k, &op.v, &op.d_k, &op.d_v});
}

int64_t WorkspaceBytes(const CrossEntropyOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  return cuda::CrossEntropyBytes(Dim(op.logits, 0), op.tally ? PolicyTally::kCount : 0);
}

int64_t WorkspaceBytes(const FiniteScanOp<Shape>& op, Backend backend) {
  return backend == Backend::kCpu || !op.squares ? 0 : cuda::kSumSquaresBytes;
}

int64_t WorkspaceBytes(const SumSquaresOp<Shape>&, Backend backend) {
  return backend == Backend::kCpu ? 0 : cuda::kSumSquaresBytes;
}

int64_t WorkspaceBytes(const MuonNormaliseOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  return cuda::MatrixSquaresBytes(Dim(op.out, 0) * Dim(op.out, 1), Dim(op.out, 2));
}

int64_t WorkspaceBytes(const ExpertSlotsOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  return cuda::ExpertSlotsBytes(op.ids.layout.numel(), op.offsets.layout.numel() - 1);
}

int64_t WorkspaceBytes(const RouterStatsOp<Shape>& op, Backend backend) {
  const int64_t experts = Dim(op.logits, 1);
  if (backend == Backend::kCpu) return 0;
  return cuda::RouterStatsBytes(Dim(op.logits, 0), Dim(op.stats, 0), experts);
}

int64_t WorkspaceBytes(const GroupedMatmulOp<Shape>& op, Backend backend) {
  return backend == Backend::kCpu ? CpuBytes(LargestProduct(op)) : 0;
}

int64_t WorkspaceBytes(const GroupedWeightGradOp<Shape>& op, Backend backend) {
  return backend == Backend::kCpu ? CpuBytes(LargestProduct(op)) : 0;
}

namespace {

// Of a product in order, on CUDA.
std::string WhyNotInOrder(const MatmulOp<Shape>& op) {
  constexpr int64_t kMultiple = 8;
  const auto is_rows = [](const Layout& layout) {
    return layout.dtype == DType::kBF16 && layout.strides[1] == 1 &&
           layout.strides[0] % kMultiple == 0 && layout.dims[1] % kMultiple == 0;
  };
  if (op.rounds_once() || op.epilogue == Epilogue::kGeluGrad || op.magnitude ||
      op.scaling != Scaling::kNone)
    return "matmul in order that accumulates, rounds once, has scales, a magnitude or a GELU's "
           "gradient: none of them is allowed";
  for (const Layout& layout :
       {op.a.layout, TransposedView(op.b).layout, op.out.layout, ResultOf(op).layout})
    if (!is_rows(layout))
      return fmt::format(
          "matmul in order of {} by {} into {}: bf16, b a transpose, and columns and strides in "
          "multiples of {} are allowed",
          ToString(op.a.layout), ToString(op.b.layout), ToString(op.out.layout), kMultiple);
  if (op.bias && op.bias.layout.dtype != DType::kBF16)
    return fmt::format("matmul in order with a bias of {}; bf16 is allowed",
                       Name(op.bias.layout.dtype));
  return "";
}

}  // namespace

std::string WhyUnsupported(const MatmulOp<Shape>& op, Backend backend) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  const int64_t m = Dim(op.out, 0), n = Dim(op.out, 1), k = Dim(op.a, 1);
  if (std::max({m, n, k}) > kLimit)
    return fmt::format("matmul {} x {} x {}: a dimension exceeds {}", m, n, k, kLimit);
  if (op.update == Update::kAccumulate && op.epilogue != Epilogue::kNone)
    return "matmul that accumulates takes no epilogue";
  if (op.rounding == Rounding::kOnce && op.epilogue != Epilogue::kNone)
    return "matmul that rounds once takes no epilogue";
  if (op.epilogue == Epilogue::kGeluGrad && !op.pre)
    return "matmul with a GELU's gradient has no pre";
  const DType a = op.a.layout.dtype, b = op.b.layout.dtype;
  const bool scaled = op.scaling != Scaling::kNone;
  if (IsFloat8(a) != scaled || IsFloat8(b) != scaled || op.a_scales.present != scaled ||
      op.b_scales.present != scaled)
    return fmt::format("matmul of {} by {}: FP8 goes with FP8 and scales, others without", Name(a),
                       Name(b));
  if (scaled) return backend == Backend::kCuda ? cuda::WhyNoFloat8Product(op) : "";
  if (backend == Backend::kCuda && a != b)
    return fmt::format("matmul of {} by {}: operands of one dtype are allowed on CUDA", Name(a),
                       Name(b));
  if (op.in_order && backend == Backend::kCuda) return WhyNotInOrder(op);
  const bool activated = op.epilogue != Epilogue::kNone && op.epilogue != Epilogue::kBias;
  for (const Shape* result : {&op.out, &op.pre})
    if (backend == Backend::kCuda && activated && *result && MatrixKeyOf(result->layout).transposed)
      return fmt::format("matmul with an activation into {}: rows are contiguous on CUDA",
                         ToString(result->layout));
  return "";
}

int64_t MostHeadDim(Backend backend) {
  return backend == Backend::kCpu ? cpu::kChunk : cuda::kMaxHeadNormDepth;
}

std::string WhyUnsupported(const AttentionOp<Shape>& op, Backend backend) {
  const int64_t heads = Dim(op.q, 2), kv_heads = Dim(op.k, 2), depth = Dim(op.q, 3);
  if (kv_heads <= 0 || heads % kv_heads != 0)
    return fmt::format("attention: {} heads are not a multiple of {} key/value heads", heads,
                       kv_heads);
  if (op.in_order && backend == Backend::kCuda &&
      ((depth != 64 && depth != 128) || op.q.layout.dtype != DType::kBF16 || op.window != 0 ||
       op.documents || op.rows.split()))
    return fmt::format(
        "attention in order of {}: bf16 heads of 64 or 128 of whole sequences are allowed, without "
        "a window and documents",
        ToString(op.q.layout));
  const int64_t limit = MostHeadDim(backend);
  if (depth > limit) return fmt::format("attention: head dimension {} exceeds {}", depth, limit);
  return "";
}

std::string WhyUnsupported(const CachedAttentionOp<Shape>& op, Backend backend) {
  const int64_t heads = Dim(op.q, 1), depth = Dim(op.q, 2);
  if (op.kv_heads <= 0 || heads % op.kv_heads != 0)
    return fmt::format("cached attention: {} heads are not a multiple of {} key/value heads", heads,
                       op.kv_heads);
  if (op.in_order && backend == Backend::kCuda &&
      ((depth != 64 && depth != 128) || op.q.layout.dtype != DType::kBF16 || op.window != 0))
    return fmt::format(
        "cached attention in order of {}: bf16 heads of 64 or 128 are allowed, without a window",
        ToString(op.q.layout));
  const int64_t limit = backend == Backend::kCpu ? cpu::kChunk : 256;
  if (depth > limit)
    return fmt::format("cached attention: head dimension {} exceeds {}", depth, limit);
  return "";
}

std::string WhyUnsupported(const RowLinearOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCpu) return "";
  const int64_t depth = Dim(op.x, 1), limit = op.norm == RowNorm::kNone ? kMostRowDepth
                                              : op.in_order             ? kMostRowNormInOrder
                                                                        : kMostRowNorm;
  if (op.in_order && (Dim(op.weight, 0) % 8 != 0 || op.norm == RowNorm::kNone ||
                      (op.finish != RowFinish::kNone && op.finish != RowFinish::kGelu)))
    return fmt::format(
        "row_linear in order of {} columns: multiples of 8 are allowed, with a norm, and no SwiGLU "
        "or rotation",
        Dim(op.weight, 0));
  if (op.x.layout.dtype != DType::kBF16)
    return fmt::format("row_linear of {}: bf16 is allowed on CUDA", Name(op.x.layout.dtype));
  if (depth % 8 != 0 || depth > limit)
    return fmt::format("row_linear: {} columns of x; multiples of 8 up to {} are allowed on CUDA",
                       depth, limit);
  return "";
}

std::string WhyUnsupported(const RopeOp<Shape>& op, Backend) {
  if (Dim(op.x, 3) % 2 != 0) return fmt::format("rope: head dimension {} is odd", Dim(op.x, 3));
  return "";
}

std::string WhyUnsupported(const HeadNormOp<Shape>& op, Backend backend) {
  const int64_t depth = Dim(op.q_weight, 0), limit = MostHeadDim(backend);
  if (depth > limit) return fmt::format("head_norm: head dimension {} exceeds {}", depth, limit);
  return "";
}

std::string WhyUnsupported(const RouteOp<Shape>& op, Backend) {
  const int64_t experts = Dim(op.logits, 1), top_k = Dim(op.ids, 1);
  if (experts > kMaxExperts)
    return fmt::format("route: {} experts exceed {}", experts, kMaxExperts);
  if (top_k > kMaxTopK) return fmt::format("route: top_k {} exceeds {}", top_k, kMaxTopK);
  if (op.groups < 1 || experts % op.groups != 0)
    return fmt::format("route: {} groups do not divide {} experts", op.groups, experts);
  if (op.top_groups < 1 || op.top_groups > op.groups || top_k > experts / op.groups * op.top_groups)
    return fmt::format("route: {} of the experts of {} of {} groups of {}", top_k, op.top_groups,
                       op.groups, experts / op.groups);
  return "";
}

std::string WhyUnsupported(const GroupedMatmulOp<Shape>& op, Backend backend) {
  return WhyUnsupported(LargestProduct(op), backend);
}

std::string WhyUnsupported(const GroupedWeightGradOp<Shape>& op, Backend backend) {
  return WhyUnsupported(LargestProduct(op), backend);
}

std::string WhyUnsupported(const QuantizeOp<Shape>& op, Backend backend) {
  if (!IsFloat8(op.out.layout.dtype))
    return fmt::format("quantize to {}; e4m3 or e5m2 is allowed", Name(op.out.layout.dtype));
  return backend == Backend::kCuda ? cuda::WhyNoQuantize(op) : "";
}

double Flops(const MatmulOp<Shape>& op) {
  return 2.0 * static_cast<double>(Dim(op.out, 0)) * static_cast<double>(Dim(op.out, 1)) *
         static_cast<double>(Dim(op.a, 1));
}

double Flops(const BatchedMatmulOp<Shape>& op) {
  return static_cast<double>(Dim(op.out, 0)) * Flops(FirstProduct(op));
}

double Flops(const GroupedMatmulOp<Shape>& op) {
  return Flops(LargestProduct(op)) * LiveShare(op.expected, Dim(op.a, 0));
}
double Flops(const GroupedWeightGradOp<Shape>& op) {
  return Flops(LargestProduct(op)) * LiveShare(op.expected, Dim(op.a, 0));
}

double Flops(const AttentionOp<Shape>& op) {
  return 2 * 2.0 * PairsOf(op) * static_cast<double>(Dim(op.q, 3));
}

double Flops(const CachedAttentionOp<Shape>& op) {
  const int64_t keys =
      op.window > 0 && op.window < op.length / 2 ? op.window : std::max<int64_t>(1, op.length / 2);
  return 2 * 2.0 * static_cast<double>(op.q.layout.numel()) * static_cast<double>(keys);
}

double Flops(const RowLinearOp<Shape>& op) {
  return 2.0 * static_cast<double>(op.weight.layout.numel());
}

double Flops(const AttentionGradOp<Shape>& op) {
  return 5 * 2.0 * PairsOf(op) * static_cast<double>(Dim(op.q, 3));
}

}  // namespace millrace
