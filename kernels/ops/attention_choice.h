// Which kernels of the CUDA backend serve an attention op, how they cut it, and the scratch they
// take. From shapes, strides and dtypes alone: a plan is the same on every GPU, and planning and
// kernels/cuda read the same numbers here.
//
// Arithmetic  kOwn computes in f32 throughout. The others multiply on tensor cores and add
//             up in f32: the probabilities, and the score gradients, are rounded to the operands'
//             dtype before they enter a product, and in cuDNN with grouped queries so are each
//             query head's contributions to d_k and d_v.
// Source      What cuDNN takes and needs: nvidia-cudnn-frontend 1.32 (sdpa_support_surface.h,
//             scaled_dot_product_flash_attention.h) and the plans that cuDNN 9.19 makes for compute
//             capability 9.0, asked for every case below. kernels/cuda checks them again at run
//             time.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/attention_ops.h"
#include "kernels/ops/shape.h"

namespace millrace::cuda {

// kRows: no gradients; kInTurn: nothing else.
enum class AttentionKernel { kOwn, kPacked, kCudnn, kRows, kInTurn };

constexpr const char* Name(AttentionKernel kernel) {
  return kernel == AttentionKernel::kCudnn    ? "cudnn"
         : kernel == AttentionKernel::kPacked ? "packed"
         : kernel == AttentionKernel::kRows   ? "rows"
         : kernel == AttentionKernel::kInTurn ? "in turn"
                                              : "own";
}

inline constexpr int64_t kMaxPackedDepth = 128;

struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::kCudnn;
  std::string why;  // cuDNN's refusal, in words; empty where it serves, as with kRows and kInTurn
};

// cuDNN serves bf16 or f16 operands (every one the same) whose head dimension is a multiple of 8,
// up to 256; whose strides are multiples of 16 bytes; lse dense; T >= 2 (its gradient refuses one
// row); B and H at most 65535, the limit of a CUDA grid. T need not be a multiple of anything.
// Every operand's address must then be a multiple of 16 bytes.
// With documents kPacked serves such operands in bf16 where D is at most kMaxPackedDepth and the
// scale is above 0, one row and windows too: it passes over keys in front of a document. It has the
// forward of an op that is in_order, too, whose gradient is whoever's it is without. The rest,
// and split sequences that cuDNN does not serve, is left to kOwn.
// Of what cuDNN serves kRows has the ops of which WhyNotRows is silent, and kInTurn the gradients
// of which WhyNotInTurn is, deterministic or not: they are faster (tools/bench/README.md). A GPU
// without them leaves both to cuDNN, so scratch is enough for either.
AttentionChoice ChooseAttention(const AttentionOp<Shape>& op);
AttentionChoice ChooseAttention(const AttentionGradOp<Shape>& op);

// "" where kInTurn could serve a gradient: bf16 heads of 64 or 128 that follow each other in a row,
// as cuDNN takes them, of whole sequences without a window and documents, which lie a multiple of
// a row apart, as a tensor map would have them. GPUs of compute capability 9.0 have it.
std::string WhyNotInTurn(const AttentionGradOp<Shape>& op);

// "" where kRows could serve an op: as kInTurn a gradient, sequences of one row included, with a
// scale above 0.
std::string WhyNotRows(const AttentionOp<Shape>& op);

// kInTurn's scratch: f32 sums of d_q, then at these bytes what attention_turns.cuh says.
struct InTurnScratch {
  int64_t rows = 0, turns = 0, ticket = 0, bytes = 0;
};
InTurnScratch InTurnScratchOf(const AttentionGradOp<Shape>& op);

// The op as a sequence of cuDNN calls over `batch` batch rows and `kv_heads` key/value heads
// with their query heads; the last call of a row may be smaller. kv_heads < Hkv only with batch 1.
// One call, unless
//   - an operand would span 2^31 elements or more,
//   - or the gradient is deterministic: cuDNN then keeps a whole matrix of score gradients (below
//     9.25), and a call is cut such that it is at most kScoreGradientBytes, as far as one key/value
//     head is.
struct AttentionSlices {
  int64_t batch = 0, kv_heads = 0;
};
inline constexpr int64_t kScoreGradientBytes = int64_t{1} << 30;
AttentionSlices SlicesOf(const AttentionOp<Shape>& op);
AttentionSlices SlicesOf(const AttentionGradOp<Shape>& op);

// Sequences split over ranks are, to cuDNN, calls of a chunk of queries against a chunk of keys:
// causal where they are the same chunk, whole where the keys are earlier. The op of one such call,
// with the operands' strides; results are those of the op or, where several calls make them, dense
// temporaries of the same shape in the op's scratch.
AttentionOp<Shape> ChunkOf(const AttentionOp<Shape>& op);
AttentionGradOp<Shape> ChunkOf(const AttentionGradOp<Shape>& op);

// Scratch of a split op, in this order; offsets in bytes, each a multiple of 256. B, S, H, Hkv, D
// are a chunk's.
struct ChunkScratch {
  int64_t call = 0;       // cuDNN's
  int64_t lse[3] = {};    // f32 [B,H,S]: of a call, and of those before, twice; a gradient: of the
                          // two chunks of queries
  int64_t queries = 0;    // as q [B,S,H,D]: out, d_q of a call
  int64_t query_sum = 0;  // f32 [B,S,H,D]; a gradient: of both chunks
  int64_t keys[2] = {};   // as q [B,S,Hkv,D]: d_k, d_v of a call
  int64_t key_sum[2] = {};  // f32
  int64_t bytes = 0;
};
ChunkScratch ChunkScratchOf(const AttentionOp<Shape>& op);
ChunkScratch ChunkScratchOf(const AttentionGradOp<Shape>& op);

// Scratch of the chosen kernel. Own and packed gradients: delta[b,h,t] = d_out . out, f32 [B,H,T].
int64_t AttentionBytes(const AttentionOp<Shape>& op);
int64_t AttentionBytes(const AttentionGradOp<Shape>& op);

}  // namespace millrace::cuda
