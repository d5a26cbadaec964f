#include "tests/kernels/support/memory.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/float16.h"
#include "runtime/base/float8.h"

namespace millrace::test {

int64_t Pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}
bool Flip(Random& random) { return Pick(random, 0, 1) == 1; }

namespace {
DType of_16_bits = DType::kBF16;
}  // namespace

DType FloatOf16Bits() { return of_16_bits; }
DType PickFloat(Random& random) { return Flip(random) ? DType::kF32 : of_16_bits; }
F16ForBF16::F16ForBF16() { of_16_bits = DType::kF16; }
F16ForBF16::~F16ForBF16() { of_16_bits = DType::kBF16; }

std::byte* AddressOf(const TensorView& view, const Index& i) {
  int64_t offset = 0;
  for (int d = 0; d < view.layout.rank; ++d) offset += i[d] * view.stride(d);
  return view.data + offset * Bytes(view.dtype());
}

double Get(const TensorView& view, const Index& i) {
  const std::byte* at = AddressOf(view, i);
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (view.dtype()) {
    case DType::kF32:
      return read(0.0f);
    case DType::kBF16:
      return ToFloat(read(BFloat16{}));
    case DType::kF16:
      return ToFloat(read(Float16{}));
    case DType::kF64:
      return read(0.0);
    case DType::kI32:
      return read(int32_t{});
    case DType::kI64:
      return static_cast<double>(read(int64_t{}));
    case DType::kU8:
      return read(uint8_t{});
    case DType::kE4M3:
    case DType::kE5M2:
      return ValuesOf(view.dtype())[read(uint8_t{})];
  }
  return 0;
}

double Get(const TensorView& view, int64_t i, int64_t j, int64_t k, int64_t l) {
  return Get(view, {i, j, k, l});
}

void Set(const TensorView& view, const Index& i, double value) {
  const auto write = [at = AddressOf(view, i)](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (view.dtype()) {
    case DType::kF32:
      return write(static_cast<float>(value));
    case DType::kBF16:
      return write(ToBFloat16(static_cast<float>(value)));
    case DType::kF16:
      return write(ToFloat16(static_cast<float>(value)));
    case DType::kF64:
      return write(value);
    case DType::kI32:
      return write(static_cast<int32_t>(value));
    case DType::kI64:
      return write(static_cast<int64_t>(value));
    case DType::kU8:
      return write(static_cast<uint8_t>(value));
    case DType::kE4M3:
    case DType::kE5M2:
      return write(ToFloat8(static_cast<float>(value), view.dtype()));
  }
}

TensorView Memory::NewBlock(Layout layout) {
  auto block = std::make_unique<Block>();
  block->bytes = layout.span_bytes() + 2 * kGuard;
  block->alignment = layout.dtype == DType::kU8 ? 8 : Bytes(layout.dtype);
  block->data = std::make_unique<std::byte[]>(static_cast<size_t>(block->bytes));
  std::memset(block->data.get(), 0xff, static_cast<size_t>(block->bytes));
  const TensorView view{block->data.get() + kGuard, layout};
  blocks_.push_back(std::move(block));
  return view;
}

TensorView Memory::New(DType dtype, std::initializer_list<int64_t> dims, Strides strides) {
  Layout layout = DenseLayout(dtype, dims);
  if (strides == Strides::kTransposed) {
    MR_CHECK_EQ(layout.rank, 2, "rank of a transposed view");
    layout.strides = {1, layout.dims[0] + 3, 0, 0};
  } else if (strides == Strides::kPadded) {
    int64_t stride = 1;
    for (int d = layout.rank - 1; d >= 0; --d) {
      layout.strides[d] = stride;
      stride = stride * layout.dims[d] + 5;
    }
  }
  return NewBlock(layout);
}

TensorView Memory::NewRandom(Random& random, DType dtype, std::initializer_list<int64_t> dims,
                             Strides strides, double scale) {
  const TensorView view = New(dtype, dims, strides);
  FillRandom(random, view, scale);
  return view;
}

TensorView Memory::NewTokens(Random& random, std::initializer_list<int64_t> dims, int64_t low,
                             int64_t high, Strides strides) {
  const TensorView view = New(DType::kI32, dims, strides);
  ForEach(view.layout,
          [&](const Index& i) { Set(view, i, static_cast<double>(Pick(random, low, high - 1))); });
  return view;
}

TensorView Memory::NewScalars(const StepScalars& scalars) {
  const TensorView view = New(DType::kU8, {sizeof(StepScalars)});
  std::memcpy(view.data, &scalars, sizeof scalars);
  return view;
}

TensorView Memory::NewLike(const TensorView& view) { return NewBlock(view.layout); }

TensorView Memory::Clone(const TensorView& view) {
  Layout layout;
  layout.dtype = view.dtype();
  layout.rank = view.layout.rank;
  layout.dims = view.layout.dims;
  int64_t stride = 1;
  for (int d = layout.rank - 1; d >= 0; --d) {
    layout.strides[d] = stride;
    stride *= layout.dims[d];
  }
  const TensorView copy = NewBlock(layout);
  ForEach(layout, [&](const Index& i) {
    std::memcpy(AddressOf(copy, i), AddressOf(view, i), static_cast<size_t>(Bytes(view.dtype())));
  });
  return copy;
}

Memory::Block& Memory::BlockOf(const TensorView& view) {
  for (const auto& block : blocks_)
    if (block->data.get() <= view.data && view.data < block->data.get() + block->bytes)
      return *block;
  MR_CHECK(false, "a view of {} lies in no block of this test", ToString(view.layout));
  return *blocks_.front();
}

void FillRandom(Random& random, const TensorView& view, double scale) {
  std::uniform_real_distribution<double> uniform(-scale, scale);
  ForEach(view.layout, [&](const Index& i) { Set(view, i, uniform(random)); });
}

const StepScalars& ScalarsOf(const TensorView& view) { return *view.as<const StepScalars>(); }

bool SameBits(const TensorView& a, const TensorView& b) {
  MR_CHECK(a.dtype() == b.dtype() && a.layout.dims == b.layout.dims, "{} compared with {}",
           ToString(a.layout), ToString(b.layout));
  Layout runs = a.layout;
  int64_t run = Bytes(a.dtype());
  const int last = runs.rank - 1;
  if (last >= 0 && a.layout.strides[last] == 1 && b.layout.strides[last] == 1) {
    run *= runs.dims[last];
    runs.dims[last] = std::min<int64_t>(runs.dims[last], 1);
  }
  bool same = true;
  ForEach(runs, [&](const Index& i) {
    same &= std::memcmp(AddressOf(a, i), AddressOf(b, i), static_cast<size_t>(run)) == 0;
  });
  return same;
}

}  // namespace millrace::test
