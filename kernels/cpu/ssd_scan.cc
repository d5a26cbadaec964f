#include "kernels/cpu/ssd_scan.h"

#include "kernels/cpu/ssd_chunk.h"

namespace millrace::cpu {

void SsdScan(const SsdScanOp<TensorView>& op, Stream&) {
  CheckScan(op, op.out);
  const SsdSizes s = SsdSizesOf(op);
  const int64_t P = s.channels, N = s.states;
  Scratch scratch(op.scratch);
  SsdChunk chunk(s, scratch);
  float* const pairs = scratch.Take(s.rows() * s.rows());
  float* const y = scratch.Take(s.rows() * P);
  float* const state = scratch.Take(s.state());
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      const float d = ElementOf(op.d, h);
      std::fill_n(state, s.state(), 0.0f);
      for (int64_t k = 0; k < s.chunks(); ++k) {
        chunk.Read(op, b, k, h);
        const int64_t q = chunk.q;
        Gemm(q, P, N, 1, {chunk.c, N}, {state, N, true}, 0, y, P);
        chunk.Scale(y, P, y, [&](int64_t i) { return chunk.FromStart(i); });
        Gemm(q, q, N, 1, {chunk.c, N}, {chunk.b, N, true}, 0, pairs, q);
        for (int64_t i = 0; i < q; ++i)
          for (int64_t j = 0; j < q; ++j)
            pairs[i * q + j] = j > i ? 0.0f : pairs[i * q + j] * chunk.Between(i, j);
        Gemm(q, P, q, 1, {pairs, q}, {chunk.u, P}, 1, y, P);
        for (int64_t e = 0; e < q * P; ++e) y[e] += d * chunk.x[e];
        StoreRows(op.out, b, k * s.chunk, q, h, y);
        chunk.Advance(state, y);
      }
    }
}

}  // namespace millrace::cpu
