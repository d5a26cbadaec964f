#include "kernels/cuda/matmul/matmul_column_sum.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/magnitude.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kLeastChunk = 64;  // rows; less is not worth a block

bool IsFloat(const TensorView& v) { return v.dtype() == DType::kF32 || IsFloatOf16Bits(v.dtype()); }

bool ReadsVectors(const TensorView& x) {
  const int64_t width = 16 / Bytes(x.dtype());
  return x.dim(1) % width == 0 && (x.stride(0) % width == 0 || x.dim(0) == 1) &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

}  // namespace

void CudaColumnSum(const ColumnSumOp<TensorView>& op, Stream& stream) {
  MR_CHECK(IsFloat(op.x) && IsFloat(op.out), "column_sum of {} into {}", ToString(op.x.layout),
           ToString(op.out.layout));
  MR_CHECK(op.x.dim(1) == op.out.dim(0) && (op.x.stride(1) == 1 || op.x.dim(1) <= 1),
           "column_sum of {} into {}", ToString(op.x.layout), ToString(op.out.layout));
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  MR_CHECK_LE(rows, std::numeric_limits<int32_t>::max(), "column_sum: rows on CUDA");
  if (columns == 0) return;
  const int64_t tiles = CeilDiv(columns, cuda::ColumnSumTile(op.x.dtype()));
  const int64_t limit = op.scratch.bytes() / (columns * 4);
  MR_CHECK_GE(limit, 1, "scratch is smaller than WorkspaceBytes of the column sum");
  const int64_t wanted =
      std::min(CeilDiv(cuda::kColumnSumBlocks, tiles), CeilDiv(rows, kLeastChunk));
  const bool few = rows <= cuda::kColumnSumFewRows;
  const cuda::ColumnSum sum{
      .x = op.x.data,
      .x_dtype = op.x.dtype(),
      .rows = rows,
      .columns = columns,
      .row_stride = op.x.stride(0),
      .partials = few ? nullptr : op.scratch.as<float>(),
      .chunks = std::clamp<int64_t>(wanted, 1, std::min(limit, cuda::kColumnSumBlocks)),
      .out = op.out.data,
      .out_dtype = op.out.dtype(),
      .out_stride = op.out.stride(0),
      .magnitude = cuda::MagnitudeOf(op.magnitude, cuda::MixOf({op.x.dtype(), op.out.dtype()})),
      .accumulate = op.update == Update::kAccumulate,
      .vectors = rows > 0 && ReadsVectors(op.x)};
  cuda::LaunchColumnSum(sum, cuda::LaunchOn(stream));
}

}  // namespace millrace
