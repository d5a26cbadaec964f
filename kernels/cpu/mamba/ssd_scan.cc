#include "kernels/cpu/mamba/ssd_scan.h"

#include "kernels/cpu/documents.h"
#include "kernels/cpu/mamba/ssd_chunk.h"

namespace millrace::cpu {

void SsdScan(const SsdScanOp<TensorView>& op, Stream&) {
  CheckScan(op, op.out);
  const SsdSizes s = SsdSizesOf(op);
  Scratch scratch(op.scratch);
  SsdChunk chunk(s, scratch);
  float* const pairs = scratch.Take(s.rows() * s.rows());
  float* const y = scratch.Take(s.rows() * s.channels);
  float* const state = scratch.Take(s.state());
  const Documents documents(op.documents, s.batch, s.length);
  const auto scan = [&](int64_t b, int64_t h, int64_t first, int64_t end) {
    const float d = ElementOf(op.d, h);
    std::fill_n(state, s.state(), 0.0f);
    for (int64_t begin = first; begin < end; begin += s.chunk) {
      chunk.Read(op, b, begin, end, h);
      chunk.Outputs(state, d, pairs, y);
      StoreRows(op.out, b, begin, chunk.q, h, y);
      chunk.Advance(state, y);
    }
  };
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      documents.ForEach(b, [&](int64_t begin, int64_t end) { scan(b, h, begin, end); });
}

}  // namespace millrace::cpu
