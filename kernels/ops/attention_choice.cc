#include "kernels/ops/attention_choice.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMaxDepth = 256, kDepthMultiple = 8, kAlignment = 16, kMaxGrid = 65535;
constexpr int64_t kMaxElements = (int64_t{1} << 31) - 1;
// What a plan asks for beside its tensors: at most 256 bytes were seen.
constexpr int64_t kSlack = 4096;

template <class Op>
struct Dims {
  explicit Dims(const Op& op)
      : batch(op.q.layout.dims[0]),
        length(op.q.layout.dims[1]),
        heads(op.q.layout.dims[2]),
        kv_heads(op.k.layout.dims[2]),
        depth(op.q.layout.dims[3]) {}
  int64_t group() const { return kv_heads > 0 ? heads / kv_heads : 0; }
  int64_t batch, length, heads, kv_heads, depth;
};

bool Dense(const Layout& layout) {
  int64_t expected = 1;
  for (int i = layout.rank - 1; i >= 0; --i) {
    if (layout.dims[i] > 1 && layout.strides[i] != expected) return false;
    expected *= layout.dims[i];
  }
  return true;
}

std::string WhyNotHeads(const Layout& layout, DType of_q, std::string_view name) {
  if (!IsFloatOf16Bits(layout.dtype))
    return fmt::format("{} is {}, cuDNN takes bf16 and f16", name, Name(layout.dtype));
  if (layout.dtype != of_q)
    return fmt::format("{} is {}, q {}; cuDNN takes one dtype", name, Name(layout.dtype),
                       Name(of_q));
  if (layout.dims[3] > 1 && layout.strides[3] != 1)
    return fmt::format("{} has stride {} in its last dimension, cuDNN takes 1", name,
                       layout.strides[3]);
  for (int i = 0; i < 3; ++i) {
    const int64_t bytes = layout.strides[i] * Bytes(layout.dtype);
    if (layout.dims[i] > 1 && bytes % kAlignment != 0)
      return fmt::format("{} has a stride of {} bytes, cuDNN takes multiples of {}", name, bytes,
                         kAlignment);
  }
  return "";
}

template <class Op>
std::string WhyNotOperands(const Op& op) {
  std::string why;
  Op::Visit(op, [&](const Shape& operand, Access access, std::string_view name) {
    if (!why.empty() || !operand || access == Access::kScratch || &operand == &op.documents) return;
    if (&operand == &op.lse) {
      if (!Dense(operand.layout)) why = "lse has gaps, cuDNN takes a dense one";
    } else {
      why = WhyNotHeads(operand.layout, op.q.layout.dtype, name);
    }
  });
  return why;
}

template <class Op>
std::string WhyNotSizes(const Op& op, const Dims<Op>& d) {
  if (op.documents) return "documents, which cuDNN's calls here do not have";
  if (op.window > 0)
    return fmt::format("a window of {}, which cuDNN's calls here do not have", op.window);
  if (d.depth % kDepthMultiple != 0 || d.depth > kMaxDepth)
    return fmt::format("head dimension {}, cuDNN takes multiples of {} up to {}", d.depth,
                       kDepthMultiple, kMaxDepth);
  if (d.length / (op.rows.split() ? 2 : 1) < 2)
    return fmt::format("{} of {}, cuDNN takes 2 and more",
                       op.rows.split() ? "half a rank's rows" : "sequences", d.length);
  if (std::max(d.batch, d.heads) > kMaxGrid)
    return fmt::format("batch {} and {} heads, cuDNN takes up to {}", d.batch, d.heads, kMaxGrid);
  return "";
}

// Of operands that cuDNN would take.
template <class Op>
bool Packed(const Op& op, const Dims<Op>& d) {
  return op.documents && op.q.layout.dtype == DType::kBF16 && !op.rows.split() && op.scale > 0 &&
         d.depth % kDepthMultiple == 0 && d.depth <= kMaxPackedDepth;
}

template <class Op>
AttentionChoice Choose(const Op& op) {
  if (const std::string why = WhyNotOperands(op); !why.empty()) return {AttentionKernel::kOwn, why};
  const Dims<Op> d(op);
  const std::string why = WhyNotSizes(op, d);
  if (why.empty()) return {};
  return {Packed(op, d) ? AttentionKernel::kPacked : AttentionKernel::kOwn, why};
}

// `n` in as few parts of at most `limit` as there can be, all of one size but the last.
int64_t PartOf(int64_t n, int64_t limit) {
  if (n <= 0) return 0;
  return CeilDiv(n, CeilDiv(n, std::clamp<int64_t>(limit, 1, n)));
}

// Batch rows such that every operand of a call spans less than 2^31 elements.
template <class Op>
int64_t BatchLimit(const Op& op) {
  int64_t limit = op.q.layout.dims[0];
  Op::Visit(op, [&](const Shape& operand, Access access, std::string_view) {
    if (!operand || access == Access::kScratch || operand.layout.rank != 4) return;
    const int64_t stride = operand.layout.strides[0];
    if (stride > 0) limit = std::min(limit, std::max<int64_t>(kMaxElements / stride, 1));
  });
  return limit;
}

// Of kernels whose products are warpgroups', and that copy or store tiles of `copied`.
template <class Op>
std::string WhyNotWarpgroups(const Op& op, std::initializer_list<const Shape*> copied) {
  if (std::string why = WhyNotOperands(op); !why.empty()) return why;
  const Dims d(op);
  if (op.q.layout.dtype != DType::kBF16 || (d.depth != 64 && d.depth != 128))
    return fmt::format("{} heads of {}; bf16 heads of 64 or 128 are expected",
                       Name(op.q.layout.dtype), d.depth);
  if (op.window > 0 || op.documents || op.rows.split())
    return "a window, documents or rows of several ranks; whole sequences are expected";
  for (const Shape* rows : copied) {
    const auto& dims = rows->layout.dims;
    const auto& strides = rows->layout.strides;
    if (dims[2] > 1 && strides[2] != d.depth)
      return fmt::format("heads of {} in {}; heads that follow each other are expected", d.depth,
                         ToString(rows->layout));
    if (d.batch > 1 && d.length > 1 &&
        (strides[1] <= 0 || strides[0] < strides[1] || strides[0] % strides[1] != 0))
      return fmt::format("rows of {}; a batch's stride that is a multiple of a row's is expected",
                         ToString(rows->layout));
  }
  if (d.batch * d.heads * CeilDiv(d.length, 64) > kMaxElements)
    return fmt::format("{} rows of {} heads of {}; up to {} tiles of 64 are expected", d.batch,
                       d.heads, d.length, kMaxElements);
  return "";
}

// cuDNN's tiles: 64 queries by 128 keys, of 16 bits.
template <class Op>
int64_t ScoreBytes(const Dims<Op>& d) {
  return RoundUp(d.length, 64) * RoundUp(d.length, 128) * 2;
}

}  // namespace

std::string WhyNotInTurn(const AttentionGradOp<Shape>& op) {
  return WhyNotWarpgroups(op, {&op.q, &op.k, &op.v, &op.d_out});
}
std::string WhyNotRows(const AttentionOp<Shape>& op) {
  if (op.in_order) return "rows in order, which have the bits of cached ones";
  if (!(op.scale > 0)) return fmt::format("a scale of {}; one above 0 is expected", op.scale);
  return WhyNotWarpgroups(op, {&op.q, &op.k, &op.v, &op.out});
}

AttentionChoice ChooseAttention(const AttentionOp<Shape>& op) {
  if (op.in_order) return {AttentionKernel::kPacked, "in order: rows have the bits of cached ones"};
  AttentionChoice choice = Choose(op);
  if (choice.kernel == AttentionKernel::kCudnn && WhyNotRows(op).empty())
    choice.kernel = AttentionKernel::kRows;
  return choice;
}
AttentionChoice ChooseAttention(const AttentionGradOp<Shape>& op) {
  AttentionChoice choice = Choose(op);
  if (choice.kernel == AttentionKernel::kCudnn && WhyNotInTurn(op).empty())
    choice.kernel = AttentionKernel::kInTurn;
  return choice;
}

AttentionSlices SlicesOf(const AttentionOp<Shape>& op) {
  const Dims d(op);
  return {PartOf(d.batch, BatchLimit(op)), d.kv_heads};
}

AttentionSlices SlicesOf(const AttentionGradOp<Shape>& op) {
  const Dims d(op);
  int64_t limit = BatchLimit(op);
  if (!op.deterministic || d.length == 0) return {PartOf(d.batch, limit), d.kv_heads};
  const int64_t head_bytes = ScoreBytes(d) * d.group(), row_bytes = head_bytes * d.kv_heads;
  if (row_bytes <= kScoreGradientBytes)
    return {PartOf(d.batch, std::min(limit, kScoreGradientBytes / std::max<int64_t>(row_bytes, 1))),
            d.kv_heads};
  return {std::min<int64_t>(d.batch, 1), PartOf(d.kv_heads, kScoreGradientBytes / head_bytes)};
}

namespace {

// Bytes taken one behind the other.
class Pieces {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t begin = end_;
    end_ += RoundUp(bytes, 256);
    return begin;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

void CutRows(const ContextRows& rows, std::initializer_list<Shape*> queries,
             std::initializer_list<Shape*> keys) {
  for (Shape* shape : queries) shape->layout.dims[1] /= 2;
  for (Shape* shape : keys) {
    shape->layout.dims[0] /= rows.ranks;
    shape->layout.dims[1] /= 2;
  }
}

// Dense, as cuDNN takes it.
void CutLse(Shape* lse, int64_t batch, int64_t heads, int64_t rows) {
  if (*lse) lse->layout = DenseLayout(DType::kF32, {batch, heads, rows});
}

}  // namespace

AttentionOp<Shape> ChunkOf(const AttentionOp<Shape>& op) {
  AttentionOp<Shape> chunk = op;
  chunk.rows = {};
  CutRows(op.rows, {&chunk.q, &chunk.out}, {&chunk.k, &chunk.v});
  const auto& dims = chunk.q.layout.dims;
  chunk.lse.present = true;  // calls are put together by it
  CutLse(&chunk.lse, dims[0], dims[2], dims[1]);
  chunk.scratch = {};
  return chunk;
}

AttentionGradOp<Shape> ChunkOf(const AttentionGradOp<Shape>& op) {
  AttentionGradOp<Shape> chunk = op;
  chunk.rows = {};
  CutRows(op.rows, {&chunk.q, &chunk.out, &chunk.d_out, &chunk.d_q},
          {&chunk.k, &chunk.v, &chunk.d_k, &chunk.d_v});
  const auto& dims = chunk.q.layout.dims;
  CutLse(&chunk.lse, dims[0], dims[2], dims[1]);
  chunk.scratch = {};
  return chunk;
}

InTurnScratch InTurnScratchOf(const AttentionGradOp<Shape>& op) {
  const Dims d(op);
  const int64_t tiles = d.batch * d.heads * CeilDiv(d.length, 64);
  Pieces pieces;
  InTurnScratch scratch;
  pieces.Take(tiles * 64 * d.depth * 4);
  scratch.rows = pieces.Take(tiles * 64 * 8);
  scratch.turns = pieces.Take(tiles * 4);
  scratch.ticket = pieces.Take(4);
  scratch.bytes = pieces.end();
  return scratch;
}

ChunkScratch ChunkScratchOf(const AttentionOp<Shape>& op) {
  const Dims d(ChunkOf(op));
  const int64_t rows = d.batch * d.heads * d.length;
  Pieces pieces;
  ChunkScratch scratch;
  scratch.call = pieces.Take(AttentionBytes(ChunkOf(op)));
  for (int64_t& lse : scratch.lse) lse = pieces.Take(rows * 4);
  scratch.queries = pieces.Take(rows * d.depth * 2);
  scratch.query_sum = pieces.Take(rows * d.depth * 4);
  scratch.bytes = pieces.end();
  return scratch;
}

ChunkScratch ChunkScratchOf(const AttentionGradOp<Shape>& op) {
  const Dims d(ChunkOf(op));
  const int64_t rows = d.batch * d.heads * d.length,
                key_numel = d.batch * d.kv_heads * d.length * d.depth;
  Pieces pieces;
  ChunkScratch scratch;
  scratch.call = pieces.Take(AttentionBytes(ChunkOf(op)));
  for (int i = 0; i < 2; ++i) scratch.lse[i] = pieces.Take(rows * 4);
  scratch.queries = pieces.Take(rows * d.depth * 2);
  scratch.query_sum = pieces.Take(2 * rows * d.depth * 4);
  for (int64_t& keys : scratch.keys) keys = pieces.Take(key_numel * 2);
  for (int64_t& sum : scratch.key_sum) sum = pieces.Take(key_numel * 4);
  scratch.bytes = pieces.end();
  return scratch;
}

int64_t AttentionBytes(const AttentionOp<Shape>& op) {
  const AttentionChoice choice = ChooseAttention(op);
  if (choice.kernel == AttentionKernel::kPacked || choice.kernel == AttentionKernel::kOwn) return 0;
  return op.rows.split() ? ChunkScratchOf(op).bytes : kSlack;
}

int64_t AttentionBytes(const AttentionGradOp<Shape>& op) {
  const Dims d(op);
  const AttentionChoice choice = ChooseAttention(op);
  if (!choice.why.empty()) return d.batch * d.heads * d.length * 4;
  if (op.rows.split()) return ChunkScratchOf(op).bytes;
  const AttentionSlices slices = SlicesOf(op);
  const int64_t heads = slices.batch * slices.kv_heads * d.group(), rows = heads * d.length;
  int64_t bytes = kSlack + rows * 4;  // row sums of d_out * out
  // d_q in f32, to which blocks add in an order of their own, or the matrix that avoids it.
  bytes += op.deterministic ? heads * ScoreBytes(d) : rows * d.depth * 4;
  if (d.group() > 1) bytes += 2 * rows * d.depth * 2;  // d_k and d_v per query head
  const bool in_turn = choice.kernel == AttentionKernel::kInTurn;
  return in_turn ? std::max(bytes, InTurnScratchOf(op).bytes) : bytes;
}

}  // namespace millrace::cuda
