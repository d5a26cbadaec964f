// How the CUDA backend cuts the ops of a Mamba-2 mixer, and the scratch that follows: part of
// cuda_blocking.h.
#pragma once

#include <cstdint>

#include "kernels/ops/ssd_sizes.h"
#include "runtime/base/arithmetic.h"

namespace millrace::cuda {

// Whether the scan multiplies on tensor cores, bf16 with f32 sums: all of x, b, c, out and their
// gradients bf16, heads of 64 channels, 128 states, chunks of 128. Else in f32, each element of a
// product by one thread.
inline constexpr int64_t kSsdChannels = 64, kSsdStates = 128, kSsdChunk = 128;
inline bool SsdOnTensorCores(const SsdSizes& s) {
  return s.one_dtype && s.dtype == DType::kBF16 && s.channels == kSsdChannels &&
         s.states == kSsdStates && s.chunk == kSsdChunk;
}

// Pieces of one scratch, one behind the other, each at a multiple of 256 bytes.
class Pieces {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += RoundUp(bytes, 256);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Offsets in bytes of what the scan's kernels leave to each other. B batch, K chunks, H heads, G
// groups, q positions of a chunk (the last is padded), S elements of a state.
struct SsdScratch {
  // Both ways of multiplying. Tensor cores: exponents of two, f32; else double.
  int64_t decay;   // sum of dt*A within the chunk [B,H,K,q]
  int64_t states;  // before each chunk [B,K,H,S]; tensor cores: bf16, else f32
  // Tensor cores: dt f32 [B,H,K,q]; else c.b f32 [B,K,G,q,q].
  int64_t steps_or_pairs;
  int64_t forward_bytes;
  // Of the gradient only.
  int64_t d_states;     // behind each chunk, as `states`
  int64_t d_pairs;      // of c.b: tensor cores bf16 [B,K,G,q,q], transposed; else f32 [B,K,H,q,q]
  int64_t spans;        // f32 [B,H,K,q], four of it: what exponents that span a position add up
  int64_t d_u;          // f32 [B,T,H,P]; not for tensor cores
  int64_t sums;         // f64 [2,B,K,H]: of d_a_log, of d_d
  int64_t state_spans;  // f32 [B,K,H]
  int64_t bytes;

  explicit SsdScratch(const SsdSizes& s) {
    const bool cores = SsdOnTensorCores(s);
    const int64_t q = cores ? kSsdChunk : s.rows(), chunks = s.batch * s.chunks();
    const int64_t positions = chunks * s.heads * q, pairs = chunks * q * q;
    const int64_t state_bytes = chunks * s.heads * s.state() * (cores ? 2 : 4);
    Pieces pieces;
    decay = pieces.Take(positions * (cores ? 4 : 8));
    states = pieces.Take(state_bytes);
    steps_or_pairs = pieces.Take(cores ? positions * 4 : pairs * s.groups * 4);
    forward_bytes = pieces.bytes();
    d_states = pieces.Take(state_bytes);
    d_pairs = pieces.Take(cores ? pairs * s.groups * 2 : pairs * s.heads * 4);
    spans = pieces.Take(4 * positions * 4);
    d_u = pieces.Take(cores ? 0 : s.batch * s.length * s.heads * s.channels * 4);
    sums = pieces.Take(2 * chunks * s.heads * 8);
    state_spans = pieces.Take(chunks * s.heads * 4);
    bytes = pieces.bytes();
  }
};

inline int64_t SsdScanBytes(const SsdSizes& s) { return SsdScratch(s).forward_bytes; }
inline int64_t SsdScanGradBytes(const SsdSizes& s) { return SsdScratch(s).bytes; }

// Rows of one sequence that a block of mamba_conv_grad sums up, in f32, before the blocks' sums are
// added in double.
inline constexpr int64_t kMambaConvRows = 256;
constexpr int64_t MambaConvGradBytes(int64_t batch, int64_t length, int64_t sums) {
  return batch * CeilDiv(length, kMambaConvRows) * sums * 4;
}

// Blocks of gated_norm_grad, at most, that each keep f32 sums of a chunk of rows.
inline constexpr int64_t kGatedNormBlocks = 128;
constexpr int64_t GatedNormGradBytes(int64_t columns) { return kGatedNormBlocks * columns * 4; }

}  // namespace millrace::cuda
