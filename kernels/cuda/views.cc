#include "kernels/cuda/views.h"

#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

void CheckFloat(const TensorView& view, const char* name, Floats16 allowed) {
  MR_CHECK(view.dtype() == DType::kF32 || view.dtype() == DType::kBF16 ||
               (view.dtype() == DType::kF16 && allowed == kF16Too),
           "{} is {}; f32{} or {} is allowed", name, Name(view.dtype()),
           allowed == kF16Too ? ", bf16" : "", allowed == kF16Too ? "f16" : "bf16");
}

void CheckOneFormat(bool bf16, bool f16) {
  MR_CHECK(!bf16 || !f16, "an op of bf16 and of f16; one of the two is allowed");
}

Rows Make(const TensorView& view, int64_t stride, bool wide) {
  return {.data = view.data,
          .stride = stride,
          .bf16 = view.dtype() == DType::kBF16,
          .wide = wide,
          .f16 = view.dtype() == DType::kF16};
}

bool Aligned(const void* p, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

Rows RowsOf(const TensorView& view, const char* name, Floats16 allowed) {
  if (!view) return {};
  CheckFloat(view, name, allowed);
  MR_CHECK(view.layout.rank == 2 && (view.dim(1) <= 1 || view.stride(1) == 1),
           "{} is {}; rows of neighbours are expected", name, ToString(view.layout));
  const int64_t stride_bytes = view.dim(0) > 1 ? view.stride(0) * Bytes(view.dtype()) : 0;
  return Make(view, view.stride(0), Aligned(view.data, stride_bytes));
}

Rows FlatOf(const TensorView& view, const char* name, Floats16 allowed) {
  if (!view) return {};
  CheckFloat(view, name, allowed);
  MR_CHECK(view.layout.contiguous(), "{} is {}; it must be contiguous", name,
           ToString(view.layout));
  return Make(view, view.numel(), Aligned(view.data, 0));
}

Rows RowsOf(const TensorView& view, int64_t rows, int64_t columns, const char* name,
            Floats16 allowed) {
  if (!view) return {};
  MR_CHECK(view.layout.rank == 2 && view.dim(0) == rows && view.dim(1) == columns,
           "{} is {}; [{}, {}] is expected", name, ToString(view.layout), rows, columns);
  return RowsOf(view, name, allowed);
}

Rows ColumnsOf(const TensorView& view, int64_t columns, const char* name, Floats16 allowed) {
  if (!view) return {};
  MR_CHECK(view.layout.rank == 1 && view.dim(0) == columns, "{} is {}; [{}] is expected", name,
           ToString(view.layout), columns);
  return FlatOf(view, name, allowed);
}

Sequence SequenceOf(const TensorView& view, const char* name) {
  if (!view) return {};
  CheckFloat(view, name, kBF16Alone);
  const int rank = view.layout.rank;
  MR_CHECK((rank == 3 || rank == 4) && (view.dim(rank - 1) <= 1 || view.stride(rank - 1) == 1),
           "{} is {}; rows of neighbours are expected", name, ToString(view.layout));
  Sequence s{Make(view, view.stride(1), true), view.stride(0), rank == 4 ? view.stride(2) : 0};
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

Elements ElementsOf(std::initializer_list<Rows> rows, std::initializer_list<Rows> others) {
  bool f32 = false, bf16 = false, f16 = false;
  for (const Rows& r : rows)
    if (r.data != nullptr) (r.bf16 ? bf16 : r.f16 ? f16 : f32) = true;
  bool other_bf16 = bf16, other_f16 = f16;
  for (const Rows& r : others)
    if (r.data != nullptr) other_bf16 |= r.bf16, other_f16 |= r.f16;
  CheckOneFormat(other_bf16, other_f16);
  if (f16) return f32 ? Elements::kAnyF16 : Elements::kF16;
  if (bf16) return f32 ? Elements::kAny : Elements::kBF16;
  return other_f16 ? Elements::kAnyF16 : Elements::kF32;
}

Elements MixOf(std::initializer_list<DType> dtypes) {
  bool bf16 = false, f16 = false;
  for (const DType dtype : dtypes) bf16 |= dtype == DType::kBF16, f16 |= dtype == DType::kF16;
  CheckOneFormat(bf16, f16);
  return f16 ? Elements::kAnyF16 : Elements::kAny;
}

Launch LaunchOn(Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  CudaDevice& device = cuda.device();
  return {cuda.get(), device.properties().multiProcessorCount,
          device.Attached<LaunchPolicy>().early};
}

}  // namespace millrace::cuda
