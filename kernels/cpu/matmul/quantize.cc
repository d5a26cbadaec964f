#include "kernels/cpu/matmul/quantize.h"

#include <algorithm>
#include <optional>

#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/magnitude.h"
#include "kernels/cpu/rows.h"
#include "runtime/base/error.h"
#include "runtime/base/float8.h"

namespace millrace::cpu {
namespace {

// The scales of a matrix's elements, a block of which has one.
class Scales {
 public:
  Scales(const TensorView& payload, const TensorView& scales)
      : view_(scales),
        block_rows_(ScaleBlockOf(payload.dim(0), scales.dim(0))),
        block_columns_(ScaleBlockOf(payload.dim(1), scales.dim(1))) {}

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

// What is quantized: rows of x, or an activation of them.
class Source {
 public:
  explicit Source(const QuantizeOp<TensorView>& op)
      : x_(op.x),
        activation_(op.activation),
        columns_(op.activation && IsGated(*op.activation) ? op.x.dim(1) / 2 : op.x.dim(1)) {}

  int64_t rows() const { return x_.dim(0); }
  int64_t columns() const { return columns_; }
  const float* Load(int64_t r, int64_t c, int64_t n, float* buffer) const {
    if (!activation_) return cpu::Load(RowAt(x_, r), c, n, buffer);
    ActivateRow(*activation_, RowAt(x_, r), columns_, c, n, buffer);
    RoundTo(x_.dtype(), buffer, n);  // as it would be stored
    return buffer;
  }

 private:
  const TensorView& x_;
  const std::optional<ActivationKind> activation_;
  const int64_t columns_;
};

// A payload and the scales that it has.
struct Form {
  const TensorView& out;
  const TensorView& scales;
};

void Check(const TensorView& x, const Source& source, const Form& form) {
  MR_CHECK(IsFloat8(form.out.dtype()) && form.scales.dtype() == DType::kF32,
           "quantize to {} with scales in {}", Name(form.out.dtype()), Name(form.scales.dtype()));
  for (const TensorView* view : {&x, &form.out, &form.scales})
    MR_CHECK_EQ(view->layout.rank, 2, "rank of quantize's {}", ToString(view->layout));
  MR_CHECK(source.rows() == form.out.dim(0) && source.columns() == form.out.dim(1),
           "quantize: x is {}, out is {}", ToString(x.layout), ToString(form.out.layout));
}

// f(scale, row, begin, x, n) for the pieces of rows that have one scale.
void ForPieces(const Source& source, const Scales& scales, auto&& f) {
  for (int64_t r = 0; r < source.rows(); ++r)
    ForChunks(source.columns(), [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      const float* const x = source.Load(r, c, n, buffer);
      scales.ForPieces(r, c, c + n, [&](float& scale, int64_t begin, int64_t end) {
        f(scale, r, begin, x + (begin - c), end - begin);
      });
    });
}

void FindScales(const Source& source, const Form& form, const TensorView& magnitude,
                ScaleRounding rounding) {
  const Scales scales(form.out, form.scales);
  if (magnitude) {
    MR_CHECK(magnitude.numel() == 1 && form.scales.numel() == 1,
             "quantize: magnitude is {}, scales are {}", ToString(magnitude.layout),
             ToString(form.scales.layout));
    scales.At(0, 0) = *magnitude.as<float>();
  } else {
    scales.ForEach([](float& most) { most = 0; });
    ForPieces(source, scales, [](float& most, int64_t, int64_t, const float* x, int64_t n) {
      most = LargestMagnitude(x, n, most);
    });
  }
  scales.ForEach(
      [&](float& most) { most = ScaleFor(most, LargestOf(form.out.dtype()), rounding); });
}

void Divide(const Source& source, const Form& form) {
  const DType dtype = form.out.dtype();
  const int64_t step = form.out.dim(1) == 1 ? 1 : form.out.stride(1);
  ForPieces(source, Scales(form.out, form.scales),
            [&](float& scale, int64_t row, int64_t column, const float* x, int64_t n) {
              uint8_t* const out =
                  form.out.as<uint8_t>() + row * form.out.stride(0) + column * step;
              for (int64_t i = 0; i < n; ++i) out[i * step] = ToFloat8(x[i] / scale, dtype);
            });
}

}  // namespace

void Quantize(const QuantizeOp<TensorView>& op, Stream&) {
  CheckFloat(op.x, "x");
  const Source source(op);
  const Form form{op.out, op.scales};
  Check(op.x, source, form);
  FindScales(source, form, op.magnitude, op.scale_rounding);
  Divide(source, form);
  if (!op.turned) return;
  MR_CHECK(op.turned.dtype() == op.out.dtype(), "quantize to {} and {}", Name(op.out.dtype()),
           Name(op.turned.dtype()));
  const Form turned{op.turned, op.turned_scales ? op.turned_scales : op.scales};
  Check(op.x, source, turned);
  if (op.turned_scales) FindScales(source, turned, {}, op.scale_rounding);
  Divide(source, turned);
}

void Turn(const TurnOp<TensorView>& op, Stream&) {
  MR_CHECK(op.payload.dtype() == DType::kE4M3 && op.turned.dtype() == DType::kE4M3 &&
               op.payload.dim(0) == op.turned.dim(0) && op.payload.dim(1) == op.turned.dim(1),
           "turn {} to {}", ToString(op.payload.layout), ToString(op.turned.layout));
  MR_CHECK_EQ(static_cast<bool>(op.scales), static_cast<bool>(op.turned_scales),
              "turn: are there scales, and turned ones");
  const auto at = [](const TensorView& v, int64_t r, int64_t c) {
    return r * v.stride(0) + c * v.stride(1);
  };
  for (int64_t r = 0; r < op.payload.dim(0); ++r)
    for (int64_t c = 0; c < op.payload.dim(1); ++c)
      op.turned.as<uint8_t>()[at(op.turned, r, c)] = op.payload.as<uint8_t>()[at(op.payload, r, c)];
  if (!op.scales) return;
  for (int64_t r = 0; r < op.turned_scales.dim(0); ++r)
    for (int64_t c = 0; c < op.turned_scales.dim(1); ++c)
      op.turned_scales.as<float>()[at(op.turned_scales, r, c)] =
          r < op.scales.dim(0) && c < op.scales.dim(1) ? op.scales.as<float>()[at(op.scales, r, c)]
                                                       : 1.0f;
}

}  // namespace millrace::cpu
