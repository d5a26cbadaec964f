#include "kernels/cuda/views.h"

#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

void CheckFloat(const TensorView& view, const char* name) {
  MR_CHECK(view.dtype() == DType::kF32 || view.dtype() == DType::kBF16,
           "{} is {}; f32 or bf16 is allowed", name, Name(view.dtype()));
}

bool Aligned(const void* p, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

Rows RowsOf(const TensorView& view, const char* name) {
  if (!view) return {};
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 2 && (view.dim(1) <= 1 || view.stride(1) == 1),
           "{} is {}; rows of neighbours are expected", name, ToString(view.layout));
  const bool bf16 = view.dtype() == DType::kBF16;
  const int64_t stride_bytes = view.dim(0) > 1 ? view.stride(0) * Bytes(view.dtype()) : 0;
  return {view.data, view.stride(0), bf16, Aligned(view.data, stride_bytes)};
}

Rows FlatOf(const TensorView& view, const char* name) {
  if (!view) return {};
  CheckFloat(view, name);
  MR_CHECK(view.layout.contiguous(), "{} is {}; it must be contiguous", name,
           ToString(view.layout));
  return {view.data, view.numel(), view.dtype() == DType::kBF16, Aligned(view.data, 0)};
}

Rows RowsOf(const TensorView& view, int64_t rows, int64_t columns, const char* name) {
  if (!view) return {};
  MR_CHECK(view.layout.rank == 2 && view.dim(0) == rows && view.dim(1) == columns,
           "{} is {}; [{}, {}] is expected", name, ToString(view.layout), rows, columns);
  return RowsOf(view, name);
}

Rows ColumnsOf(const TensorView& view, int64_t columns, const char* name) {
  if (!view) return {};
  MR_CHECK(view.layout.rank == 1 && view.dim(0) == columns, "{} is {}; [{}] is expected", name,
           ToString(view.layout), columns);
  return FlatOf(view, name);
}

Sequence SequenceOf(const TensorView& view, const char* name) {
  if (!view) return {};
  CheckFloat(view, name);
  const int rank = view.layout.rank;
  MR_CHECK((rank == 3 || rank == 4) && (view.dim(rank - 1) <= 1 || view.stride(rank - 1) == 1),
           "{} is {}; rows of neighbours are expected", name, ToString(view.layout));
  Sequence s{{view.data, view.stride(1), view.dtype() == DType::kBF16, true},
             view.stride(0),
             rank == 4 ? view.stride(2) : 0};
  for (int i = 0; i + 1 < rank; ++i)
    s.rows.wide = s.rows.wide &&
                  Aligned(view.data, view.dim(i) > 1 ? view.stride(i) * Bytes(view.dtype()) : 0);
  return s;
}

float* FloatsOf(const TensorView& view, int64_t n, const char* name) {
  if (!view) return nullptr;
  MR_CHECK(view.dtype() == DType::kF32 && view.numel() == n && view.layout.contiguous(),
           "{} is {}; dense f32[{}] is expected", name, ToString(view.layout), n);
  return view.as<float>();
}

int32_t* IntsOf(const TensorView& view, int64_t n, const char* name) {
  if (!view) return nullptr;
  MR_CHECK(view.dtype() == DType::kI32 && view.numel() == n && view.layout.contiguous(),
           "{} is {}; dense i32 of {} elements is expected", name, ToString(view.layout), n);
  return view.as<int32_t>();
}

double* DoublesOf(const TensorView& view, int64_t n, const char* name) {
  MR_CHECK(view && view.dtype() == DType::kF64 && view.numel() == n && view.layout.contiguous(),
           "{} is {}; {} contiguous elements of f64 are expected", name, ToString(view.layout), n);
  return view.as<double>();
}

StepScalars* ScalarsOf(const TensorView& scalars) {
  MR_CHECK(scalars && scalars.bytes() >= static_cast<int64_t>(sizeof(StepScalars)),
           "scalars are {}; {} bytes are expected", ToString(scalars.layout), sizeof(StepScalars));
  return scalars.as<StepScalars>();
}

TokenRows TokensOf(const TensorView& tokens, const TensorView& scalars, int64_t parity_stride) {
  MR_CHECK(tokens.dtype() == DType::kI32 && tokens.layout.rank == 2,
           "tokens are {}; i32[B, T] is expected", ToString(tokens.layout));
  TokenRows rows;
  rows.data = tokens.as<int32_t>();
  rows.batch = tokens.dim(0);
  rows.length = tokens.dim(1);
  rows.batch_stride = tokens.stride(0);
  rows.length_stride = tokens.stride(1);
  rows.parity_stride = parity_stride;
  rows.scalars = ScalarsOf(scalars);
  return rows;
}

ValueRows ValuesOf(const TensorView& values, const TokenRows& tokens, const char* name) {
  if (!values) return {};
  MR_CHECK(values.dtype() == DType::kF32 && values.layout.rank == 2 &&
               values.dim(0) == tokens.batch && values.dim(1) == tokens.length,
           "{} is {}; f32[{}, {}] is expected", name, ToString(values.layout), tokens.batch,
           tokens.length);
  return {values.as<float>(), values.stride(0), values.stride(1)};
}

std::byte* ScratchOf(const TensorView& scratch, int64_t bytes, const char* op) {
  if (bytes == 0) return nullptr;
  MR_CHECK_LE(bytes, scratch ? scratch.bytes() : 0, "{}: scratch", op);
  MR_CHECK(Aligned(scratch.data, 0), "{}: scratch at {} is not aligned to 16 bytes", op,
           static_cast<const void*>(scratch.data));
  return scratch.data;
}

Elements ElementsOf(std::initializer_list<Rows> rows) {
  bool f32 = false, bf16 = false;
  for (const Rows& r : rows)
    if (r.data != nullptr) (r.bf16 ? bf16 : f32) = true;
  return f32 && bf16 ? Elements::kAny : bf16 ? Elements::kBF16 : Elements::kF32;
}

Launch LaunchOn(Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  CudaDevice& device = cuda.device();
  return {cuda.get(), device.properties().multiProcessorCount,
          device.Attached<LaunchPolicy>().early};
}

}  // namespace millrace::cuda
