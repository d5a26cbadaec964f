#include "kernels/cuda/matmul/shard_quantize.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/matmul/shard_quantize_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

uint8_t* PayloadOf(const TensorView& view, int64_t n) {
  MR_CHECK(view.dtype() == DType::kE4M3 && view.layout.contiguous() && view.numel() == n,
           "payload is {}; e4m3 [{}] is allowed", ToString(view.layout), n);
  return view.as<uint8_t>();
}

// f(matrix, part, begin): of each matrix what the shard has of it, from `begin` of the shard on.
template <class F>
void ForParts(const FlatEncoding& encoding, int64_t flat_begin, const TensorView& master, F&& f) {
  MR_CHECK(encoding.compute == DType::kF32 || encoding.compute == DType::kBF16,
           "weights of {} are gathered in FP8; f32 and bf16 are allowed", Name(encoding.compute));
  const float* const x = FloatsOf(master, encoding.shard_numel, "master");
  for (const FlatMatrix& matrix : encoding.matrices) {
    const int64_t begin = std::max(flat_begin, matrix.begin),
                  end = std::min(flat_begin + encoding.shard_numel, matrix.end());
    if (begin >= end) continue;
    MR_CHECK_LE(matrix.rows * matrix.columns, std::numeric_limits<int32_t>::max(),
                "elements of a matrix that is gathered in FP8");
    MatrixPart part;
    part.x = x + (begin - flat_begin);
    part.first = static_cast<uint32_t>(begin - matrix.begin);
    part.n = static_cast<uint32_t>(end - begin);
    part.columns = Divisor(matrix.columns);
    part.block_rows = Divisor(ScaleBlockOf(matrix.rows, matrix.scale_rows));
    part.block_columns = Divisor(ScaleBlockOf(matrix.columns, matrix.scale_columns));
    part.scale_columns = static_cast<uint32_t>(matrix.scale_columns);
    part.bf16 = encoding.compute == DType::kBF16;
    f(matrix, part, begin - flat_begin);
  }
}

Rows OneRow(const TensorView& of, int64_t begin, int64_t n, const char* name) {
  TensorView part = of;
  part.data += begin * Bytes(of.dtype());
  part.layout = DenseLayout(of.dtype(), {n});
  return FlatOf(part, name);
}

ScalesAt ScalesOf(const TensorView& scales) {
  MR_CHECK(scales.dtype() == DType::kF32 && scales.layout.rank == 2, "turn: scales are {}",
           ToString(scales.layout));
  return {scales.as<float>(), static_cast<int>(scales.dim(0)), static_cast<int>(scales.dim(1)),
          scales.stride(0), scales.stride(1)};
}

}  // namespace

void CudaShardMagnitudes(const ShardMagnitudesOp<TensorView>& op, Stream& stream) {
  const FlatEncoding& encoding = *op.encoding;
  const Launch launch = LaunchOn(stream);
  float* const row = FloatsOf(op.row, encoding.row(), "row");
  MR_CUDA(cudaMemsetAsync(row, 0, static_cast<size_t>(op.row.bytes()), launch.stream));
  const int64_t first = op.flat_begin.value();
  ForParts(encoding, first, op.master,
           [&](const FlatMatrix& matrix, const MatrixPart& part, int64_t) {
             LaunchPartMagnitudes(part, reinterpret_cast<uint32_t*>(row) + matrix.scales, launch);
           });
  ForRestPieces(encoding, first, encoding.shard_numel, [&](int64_t begin, int64_t n, int64_t k) {
    LaunchCopy(OneRow(op.master, begin, n, "master"), OneRow(op.row, encoding.scales + k, n, "row"),
               false, n, launch);
  });
}

void CudaShardQuantize(const ShardQuantizeOp<TensorView>& op, Stream& stream) {
  const FlatEncoding& encoding = *op.encoding;
  const Launch launch = LaunchOn(stream);
  const float* const scales = FloatsOf(op.scales, encoding.scales, "scales");
  uint8_t* const payload = PayloadOf(op.payload, encoding.shard_numel);
  const bool powers = encoding.scale_rounding == ScaleRounding::kPowerOfTwo;
  int64_t done = 0;
  const auto zero_until = [&](int64_t end) {
    if (done < end)
      MR_CUDA(cudaMemsetAsync(payload + done, 0, static_cast<size_t>(end - done), launch.stream));
  };
  ForParts(encoding, op.flat_begin.value(), op.master,
           [&](const FlatMatrix& matrix, const MatrixPart& part, int64_t begin) {
             zero_until(begin);
             LaunchPartQuantize(part, scales + matrix.scales, powers, payload + begin, launch);
             done = begin + part.n;
           });
  zero_until(encoding.shard_numel);
}

void CudaFlatScales(const FlatScalesOp<TensorView>& op, Stream& stream) {
  const FlatEncoding& encoding = *op.encoding;
  const Launch launch = LaunchOn(stream);
  const int64_t ranks = op.table.numel() / encoding.row();
  const float* const table = FloatsOf(op.table, ranks * encoding.row(), "table");
  LaunchFlatScales(reinterpret_cast<const uint32_t*>(table), static_cast<int>(ranks),
                   encoding.row(), encoding.scales,
                   encoding.scale_rounding == ScaleRounding::kPowerOfTwo,
                   FloatsOf(op.scales, encoding.scales, "scales"), launch);
  if (encoding.rest_numel == 0) return;
  MR_CHECK(op.rest.dtype() == encoding.compute && op.rest.numel() == encoding.rest_numel,
           "flat_scales: rest is {}; {} [{}] is allowed", ToString(op.rest.layout),
           Name(encoding.compute), encoding.rest_numel);
  int64_t at = 0;
  for (int64_t r = 0; r < ranks; ++r)
    ForRestPieces(encoding, r * encoding.shard_numel, encoding.shard_numel,
                  [&](int64_t, int64_t n, int64_t k) {
                    LaunchCopy(
                        OneRow(op.table, r * encoding.row() + encoding.scales + k, n, "table"),
                        OneRow(op.rest, at, n, "rest"), false, n, launch);
                    at += n;
                  });
}

void CudaTurn(const TurnOp<TensorView>& op, Stream& stream) {
  MR_CHECK(op.payload.dtype() == DType::kE4M3 && op.turned.dtype() == DType::kE4M3 &&
               op.payload.dim(0) == op.turned.dim(0) && op.payload.dim(1) == op.turned.dim(1) &&
               (op.payload.dim(1) <= 1 || op.payload.stride(1) == 1) &&
               (op.turned.dim(0) <= 1 || op.turned.stride(0) == 1),
           "turn {} to {}", ToString(op.payload.layout), ToString(op.turned.layout));
  MR_CHECK_EQ(static_cast<bool>(op.scales), static_cast<bool>(op.turned_scales),
              "turn: are there scales, and turned ones");
  constexpr int64_t kMost = int64_t{1} << 22;  // of rows, blocks of a launch have 65,535 x 64
  MR_CHECK(op.payload.dim(0) < kMost && op.payload.dim(1) < kMost, "turn {}",
           ToString(op.payload.layout));
  const Launch launch = LaunchOn(stream);
  LaunchTurn(
      {op.payload.as<uint8_t>(), op.turned.as<uint8_t>(), op.payload.stride(0), op.turned.stride(1),
       static_cast<int>(op.payload.dim(0)), static_cast<int>(op.payload.dim(1))},
      launch);
  if (op.scales) LaunchTurnScales(ScalesOf(op.scales), ScalesOf(op.turned_scales), launch);
}

}  // namespace millrace
