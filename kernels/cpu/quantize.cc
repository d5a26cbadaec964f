#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/rows.h"
#include "runtime/base/error.h"
#include "runtime/base/float8.h"

namespace millrace::cpu {
namespace {

// The scales of a matrix's elements, a block of which has one.
class Scales {
 public:
  explicit Scales(const QuantizeOp<TensorView>& op)
      : view_(op.scales),
        block_rows_(ScaleBlockOf(op.x.dim(0), op.scales.dim(0))),
        block_columns_(ScaleBlockOf(op.x.dim(1), op.scales.dim(1))) {}

  float& At(int64_t row_block, int64_t column_block) const {
    return view_.as<float>()[row_block * view_.stride(0) + column_block * view_.stride(1)];
  }
  void ForEach(auto&& f) const {
    for (int64_t r = 0; r < view_.dim(0); ++r)
      for (int64_t c = 0; c < view_.dim(1); ++c) f(At(r, c));
  }
  // f(scale, begin, end) for the pieces of row `row`, columns [begin, end), that have one scale.
  void ForPieces(int64_t row, int64_t begin, int64_t end, auto&& f) const {
    while (begin < end) {
      const int64_t block = begin / block_columns_,
                    piece = std::min(end, (block + 1) * block_columns_);
      f(At(row / block_rows_, block), begin, piece);
      begin = piece;
    }
  }

 private:
  const TensorView& view_;
  const int64_t block_rows_, block_columns_;
};

void Check(const QuantizeOp<TensorView>& op) {
  CheckFloat(op.x, "x");
  MR_CHECK(IsFloat8(op.out.dtype()) && op.scales.dtype() == DType::kF32,
           "quantize to {} with scales in {}", Name(op.out.dtype()), Name(op.scales.dtype()));
  for (const TensorView* view : {&op.x, &op.out, &op.scales})
    MR_CHECK_EQ(view->layout.rank, 2, "rank of quantize's {}", ToString(view->layout));
  MR_CHECK(op.x.dim(0) == op.out.dim(0) && op.x.dim(1) == op.out.dim(1),
           "quantize: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
}

// Of a block whose largest finite magnitude is `most`.
float ScaleFor(float most, float largest, ScaleRounding rounding) {
  if (most == 0) return 1;
  const float scale = std::max(most / largest, kLeastScale);
  if (rounding == ScaleRounding::kExact) return scale;
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);  // in [1/2, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

}  // namespace

void Quantize(const QuantizeOp<TensorView>& op, Stream&) {
  Check(op);
  const Scales scales(op);
  const DType dtype = op.out.dtype();
  const auto for_pieces = [&](auto&& f) {
    for (int64_t r = 0; r < op.x.dim(0); ++r)
      ForChunks(op.x.dim(1), [&](int64_t c, int64_t n) {
        float buffer[kChunk];
        const float* const x = Load(RowAt(op.x, r), c, n, buffer);
        scales.ForPieces(r, c, c + n, [&](float& scale, int64_t begin, int64_t end) {
          f(scale, r, begin, x + (begin - c), end - begin);
        });
      });
  };
  scales.ForEach([](float& most) { most = 0; });
  for_pieces([](float& most, int64_t, int64_t, const float* x, int64_t n) {
    float largest = most;
    for (int64_t i = 0; i < n; ++i) {
      const float magnitude = std::fabs(x[i]);
      const bool finite = magnitude <= std::numeric_limits<float>::max();
      largest = finite && magnitude > largest ? magnitude : largest;
    }
    most = largest;
  });
  scales.ForEach([&](float& most) { most = ScaleFor(most, LargestOf(dtype), op.scale_rounding); });
  for_pieces([&](float& scale, int64_t row, int64_t column, const float* x, int64_t n) {
    const int64_t step = op.out.dim(1) == 1 ? 1 : op.out.stride(1);
    uint8_t* const out = op.out.as<uint8_t>() + row * op.out.stride(0) + column * step;
    for (int64_t i = 0; i < n; ++i) out[i * step] = ToFloat8(x[i] / scale, dtype);
  });
}

}  // namespace millrace::cpu
