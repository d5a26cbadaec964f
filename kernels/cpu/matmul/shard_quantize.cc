#include "kernels/cpu/matmul/shard_quantize.h"

#include <algorithm>

#include "kernels/cpu/magnitude.h"
#include "kernels/cpu/rows.h"
#include "runtime/base/error.h"
#include "runtime/base/float8.h"

namespace millrace::cpu {
namespace {

// `v` as n elements that follow each other.
void CheckDense(const TensorView& v, DType dtype, int64_t n, const char* name) {
  MR_CHECK(v && v.dtype() == dtype && v.layout.contiguous() && v.numel() == n,
           "{} is {}; {} [{}] is allowed", name, ToString(v.layout), Name(dtype), n);
}

// Elements [begin, begin + n) of the master shard, n at most kChunk, as the compute dtype has them.
const float* Rounded(const TensorView& master, DType compute, int64_t begin, int64_t n,
                     float* buffer) {
  const float* const x = master.as<float>() + begin;
  if (compute == DType::kF32) return x;
  std::copy(x, x + n, buffer);
  RoundTo(compute, buffer, n);
  return buffer;
}

}  // namespace

void ShardMagnitudes(const ShardMagnitudesOp<TensorView>& op, Stream&) {
  const FlatEncoding& encoding = *op.encoding;
  CheckDense(op.master, DType::kF32, encoding.shard_numel, "master");
  CheckDense(op.row, DType::kF32, encoding.row(), "row");
  const int64_t first = op.flat_begin.value();
  float* const row = op.row.as<float>();
  float buffer[kChunk];
  std::fill(row, row + encoding.row(), 0.0f);
  ForScalePieces(
      encoding, first, encoding.shard_numel, [&](int64_t scale, int64_t begin, int64_t count) {
        ForChunks(count, [&](int64_t at, int64_t n) {
          const float* const x = Rounded(op.master, encoding.compute, begin + at, n, buffer);
          row[scale] = LargestMagnitude(x, n, row[scale]);
        });
      });
  ForRestPieces(encoding, first, encoding.shard_numel, [&](int64_t begin, int64_t n, int64_t k) {
    const float* const x = op.master.as<float>() + begin;
    std::copy(x, x + n, row + encoding.scales + k);
  });
}

void FlatScales(const FlatScalesOp<TensorView>& op, Stream&) {
  const FlatEncoding& encoding = *op.encoding;
  const int64_t ranks = op.table.numel() / encoding.row();
  CheckDense(op.table, DType::kF32, ranks * encoding.row(), "table");
  CheckDense(op.scales, DType::kF32, encoding.scales, "scales");
  const float* const table = op.table.as<float>();
  for (int64_t s = 0; s < encoding.scales; ++s) {
    float most = 0;
    for (int64_t r = 0; r < ranks; ++r) most = std::max(most, table[r * encoding.row() + s]);
    op.scales.as<float>()[s] = ScaleFor(most, LargestOf(DType::kE4M3), encoding.scale_rounding);
  }
  if (encoding.rest_numel == 0) return;
  CheckDense(op.rest, encoding.compute, encoding.rest_numel, "rest");
  const Row rest = Flat(op.rest, "rest");
  for (int64_t r = 0, at = 0; r < ranks; ++r)
    ForRestPieces(encoding, r * encoding.shard_numel, encoding.shard_numel,
                  [&](int64_t, int64_t n, int64_t k) {
                    Store(rest, at, n, table + r * encoding.row() + encoding.scales + k);
                    at += n;
                  });
}

void ShardQuantize(const ShardQuantizeOp<TensorView>& op, Stream&) {
  const FlatEncoding& encoding = *op.encoding;
  CheckDense(op.master, DType::kF32, encoding.shard_numel, "master");
  CheckDense(op.scales, DType::kF32, encoding.scales, "scales");
  CheckDense(op.payload, DType::kE4M3, encoding.shard_numel, "payload");
  uint8_t* const payload = op.payload.as<uint8_t>();
  float buffer[kChunk];
  std::fill(payload, payload + encoding.shard_numel, uint8_t{0});
  ForScalePieces(encoding, op.flat_begin.value(), encoding.shard_numel,
                 [&](int64_t s, int64_t begin, int64_t count) {
                   const float scale = op.scales.as<float>()[s];
                   ForChunks(count, [&](int64_t at, int64_t n) {
                     const float* const x =
                         Rounded(op.master, encoding.compute, begin + at, n, buffer);
                     uint8_t* const out = payload + begin + at;
                     for (int64_t i = 0; i < n; ++i) out[i] = ToFloat8(x[i] / scale, DType::kE4M3);
                   });
                 });
}

}  // namespace millrace::cpu
