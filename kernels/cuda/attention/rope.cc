#include "kernels/cuda/attention/rope.h"

#include <limits>

#include "kernels/cuda/attention/rope_launch.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

namespace {

// x [B,T,H,D], turned forward. No packs: there is nothing to do.
RopeArgs ArgsOf(const TensorView& x, const TensorView& table) {
  const int64_t half = x.dim(3) / 2;
  MR_CHECK(x.dtype() == DType::kF32 || IsFloatOf16Bits(x.dtype()),
           "rope: x is {}; f32, bf16 or f16 is allowed", Name(x.dtype()));
  MR_CHECK(x.layout.rank == 4 && x.dim(3) % 2 == 0 && x.stride(3) == 1,
           "rope: x is {}; the head dimension must be even and dense", ToString(x.layout));
  MR_CHECK(table.dtype() == DType::kF32 && table.dim(1) == half && table.layout.contiguous(),
           "rope: table is {}, x is {}", ToString(table.layout), ToString(x.layout));
  RopeArgs args;
  const int64_t per_head = Packs(half), per_position = x.dim(2) * per_head;
  const int64_t packs = x.dim(0) * x.dim(1) * per_position;
  if (packs == 0) return args;
  MR_CHECK_LE(packs, std::numeric_limits<int32_t>::max(), "rope: packs of eight pairs");
  const int64_t size = Bytes(x.dtype());
  bool wide = half % kPack == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(table.data) % 16 == 0;
  for (int i = 0; i < 3; ++i) wide &= x.dim(i) == 1 || x.stride(i) * size % 16 == 0;
  args.x = {.data = x.data,
            .bf16 = x.dtype() == DType::kBF16,
            .wide = wide,
            .f16 = x.dtype() == DType::kF16};
  args.table = table.as<float>();
  args.batch_stride = x.stride(0);
  args.position_stride = x.stride(1);
  args.head_stride = x.stride(2);
  args.packs = static_cast<uint32_t>(packs);
  args.length = Divisor(x.dim(1));
  args.per_head = Divisor(per_head);
  args.per_position = Divisor(per_position);
  args.half = static_cast<int>(half);
  return args;
}

}  // namespace

void CudaRopeTable(const RopeTableOp<TensorView>& op, Stream& stream) {
  const TensorView& table = op.table;
  MR_CHECK(table.dtype() == DType::kF32 && table.layout.rank == 3 && table.dim(2) == 2 &&
               table.layout.contiguous(),
           "rope table is {}; dense f32[T, D/2, 2] is expected", ToString(table.layout));
  const int64_t length = table.dim(0);
  const std::array<int64_t, 2> starts = ChunkStarts(op.rows, length);
  LaunchRopeTable({.table = table.as<float>(),
                   .length = length,
                   .half = table.dim(1),
                   .chunk = op.rows.split() ? length / 2 : length,
                   .start = {starts[0], starts[1]},
                   .attrs = op},
                  LaunchOn(stream));
}

void CudaRope(const RopeOp<TensorView>& op, Stream& stream) {
  const TensorView& x = op.x;
  MR_CHECK(op.table.dim(0) >= x.dim(1), "rope: table is {}, x is {}", ToString(op.table.layout),
           ToString(x.layout));
  RopeArgs args = ArgsOf(x, op.table);
  if (args.packs == 0) return;
  args.documents = IntsOf(op.documents, x.dim(0) * x.dim(1), "documents");
  args.sign = op.direction == RopeDirection::kForward ? 1.0f : -1.0f;
  LaunchRope(args, LaunchOn(stream));
}

void CudaRopeRows(const RopeRowsOp<TensorView>& op, Stream& stream) {
  MR_CHECK(op.x.layout.rank == 3, "rope_rows: x is {}; [R,H,D] is expected", ToString(op.x.layout));
  TensorView x = op.x;  // as one sequence
  x.layout.rank = 4;
  x.layout.dims = {1, op.x.dim(0), op.x.dim(1), op.x.dim(2)};
  x.layout.strides = {0, op.x.stride(0), op.x.stride(1), op.x.stride(2)};
  RopeArgs args = ArgsOf(x, op.table);
  if (args.packs == 0) return;
  args.at = IntsOf(op.at, op.x.dim(0), "at");
  LaunchRope(args, LaunchOn(stream));
}

}  // namespace millrace
