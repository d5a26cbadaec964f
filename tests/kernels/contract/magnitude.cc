// Magnitudes that ops form of what they store, and payloads of FP8 by them. All of it is exact.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/ops/matmul_key.h"
#include "runtime/base/float8.h"
#include "tests/kernels/contract/contract.h"

namespace millrace::test {
namespace {

struct Sizes {
  int64_t rows, columns;
};

// One pack and less, several blocks of threads, rows of several warps; multiples of a pack and not.
constexpr Sizes kSizesOfRows[] = {{0, 8},   {1, 1},    {3, 8},    {5, 13},   {130, 72}, {67, 96},
                                  {9, 768}, {33, 776}, {3, 4104}, {2, 4099}, {40, 33}};

// Rows of one dtype, dense, as kernels of wide accesses take them; or any.
struct Form {
  bool wide;
  DType dtype;

  explicit Form(Random& random) : wide(Flip(random)), dtype(PickFloat(random)) {}
  TensorView New(Memory& memory, Random& random, int64_t rows, int64_t columns,
                 double scale = 1) const {
    return memory.NewRandom(random, wide ? dtype : PickFloat(random), {rows, columns},
                            wide ? Strides::kDense : PickRowStrides(random), scale);
  }
  TensorView New(Memory& memory, Random& random, int64_t columns) const {
    return memory.NewRandom(random, wide ? dtype : PickFloat(random), {columns});
  }
};

// Numbers that no magnitude is of; the largest finite one lies anywhere.
void Disturb(Random& random, const TensorView& x) {
  if (x.numel() == 0) return;
  const auto place = [&] {
    return Index{Pick(random, 0, x.dim(0) - 1), Pick(random, 0, x.dim(1) - 1)};
  };
  Set(x, place(), Flip(random) ? 7.5 : -7.5);
  if (Flip(random)) Set(x, place(), Flip(random) ? NAN : -INFINITY);
}

float MagnitudeOf(const TensorView& x) {
  float most = 0;
  ForEach(x.layout, [&](const Index& i) {
    const auto magnitude = static_cast<float>(std::abs(Get(x, i)));
    if (std::isfinite(magnitude)) most = std::max(most, magnitude);
  });
  return most;
}

// Runs the op without and with a magnitude of `of`, which it writes or, in a column sum, reads.
template <template <class> class Op>
void RequireMagnitude(const Subject& subject, Random& random, Memory& memory, KernelFn<Op> entry,
                      Op<TensorView> op, TensorView Op<TensorView>::*of) {
  Op<TensorView> plain = op;
  Op<TensorView>::Visit(plain, [&](TensorView& view, Access access, std::string_view) {
    if (view && Writes(access))
      view = access == Access::kWrite ? memory.NewLike(view) : memory.Clone(view);
  });
  Run(subject, memory, entry, plain);
  const float before = Pick(random, 0, 2) == 0 ? 0.0f : Flip(random) ? 0x1p-30f : 0x1p30f;
  op.magnitude = memory.New(DType::kF32, {1});
  Set(op.magnitude, {0}, before);
  Run(subject, memory, entry, op);
  INFO(Op<TensorView>::kName << " of " << ToString((op.*of).layout) << ", before: " << before);
  CHECK(SameBits(op.*of, plain.*of));
  const float expected = std::max(before, MagnitudeOf(op.*of));
  CHECK(static_cast<float>(Get(op.magnitude)) == expected);
}

void NormCases(const Subject& subject, Random& random, Sizes s) {
  Memory memory;
  const Form form(random);
  NormOp<TensorView> op{};
  op.kind = Flip(random) ? NormKind::kLayer : NormKind::kRms;
  op.x = form.New(memory, random, s.rows, s.columns);
  op.weight = form.New(memory, random, s.columns);
  if (op.kind == NormKind::kLayer) {
    op.bias = form.New(memory, random, s.columns);
    op.mean = memory.New(DType::kF32, {s.rows});
  }
  if (Flip(random)) {
    op.residual = form.New(memory, random, s.rows, s.columns);
    op.sum = form.New(memory, random, s.rows, s.columns);
  }
  op.out = form.New(memory, random, s.rows, s.columns);
  op.rstd = memory.New(DType::kF32, {s.rows});
  Disturb(random, op.x);
  RequireMagnitude(subject, random, memory, subject.table.norm, op, &NormOp<TensorView>::out);
}

void NormGradCases(const Subject& subject, Random& random, Sizes s) {
  Memory memory;
  const Form form(random);
  NormGradOp<TensorView> op{};
  op.kind = Flip(random) ? NormKind::kLayer : NormKind::kRms;
  op.d_out = form.New(memory, random, s.rows, s.columns);
  op.x = form.New(memory, random, s.rows, s.columns);
  op.weight = form.New(memory, random, s.columns);
  if (op.kind == NormKind::kLayer) op.mean = memory.NewRandom(random, DType::kF32, {s.rows});
  op.rstd = memory.NewRandom(random, DType::kF32, {s.rows});
  if (Flip(random)) op.d_bypass = form.New(memory, random, s.rows, s.columns);
  op.d_x = form.New(memory, random, s.rows, s.columns);
  op.partials = NewPartials(memory, op, op.kind == NormKind::kLayer ? 2 : 1, subject.backend);
  Disturb(random, op.d_bypass ? op.d_bypass : op.d_out);
  RequireMagnitude(subject, random, memory, subject.table.norm_grad, op,
                   &NormGradOp<TensorView>::d_x);
}

void ActivationCases(const Subject& subject, Random& random, Sizes s) {
  Memory memory;
  const Form form(random);
  const auto kind = static_cast<ActivationKind>(Pick(random, 0, 2));
  const int64_t wide = IsGated(kind) ? 2 * s.columns : s.columns;
  ActivationOp<TensorView> op{};
  op.kind = kind;
  op.x = form.New(memory, random, s.rows, wide, 4);
  op.out = form.New(memory, random, s.rows, s.columns);
  Disturb(random, op.x);
  RequireMagnitude(subject, random, memory, subject.table.activation, op,
                   &ActivationOp<TensorView>::out);
  ActivationGradOp<TensorView> grad{};
  grad.kind = kind;
  grad.x = op.x;
  grad.d_out = form.New(memory, random, s.rows, s.columns);
  grad.d_x = form.New(memory, random, s.rows, wide);
  Disturb(random, grad.d_out);
  RequireMagnitude(subject, random, memory, subject.table.activation_grad, grad,
                   &ActivationGradOp<TensorView>::d_x);
}

void ColumnSumCases(const Subject& subject, Random& random, Sizes s) {
  Memory memory;
  const Form form(random);
  ColumnSumOp<TensorView> op{};
  op.x = form.New(memory, random, s.rows, s.columns);
  op.out = form.New(memory, random, s.columns);
  Disturb(random, op.x);
  RequireMagnitude(subject, random, memory, subject.table.column_sum, op,
                   &ColumnSumOp<TensorView>::x);
}

void ProductCases(const Subject& subject, Random& random, Epilogue epilogue) {
  Memory memory;
  const DType dtype = PickFloat(random);
  const int64_t m = Flip(random) ? 5 : 48, n = 64, k = 32;
  MatmulOp<TensorView> op{};
  op.a = memory.NewRandom(random, dtype, {m, k});
  op.b = TransposedView(memory.NewRandom(random, dtype, {n, k}));
  op.epilogue = epilogue;
  op.out = memory.New(dtype, {m, n});
  if (epilogue == Epilogue::kBiasGelu) op.bias = memory.NewRandom(random, dtype, {n});
  op.pre = memory.NewRandom(random, dtype, {m, n});
  // Without a magnitude a product of few rows is another kernel's, whose sums have another order.
  Disturb(random, op.a);
  const TensorView before = memory.New(DType::kF32, {1});
  Set(before, {0}, 0);
  op.magnitude = before;
  Run(subject, memory, subject.table.matmul, op);
  INFO("epilogue " << static_cast<int>(epilogue) << ", " << m << " rows");
  CHECK(static_cast<float>(Get(op.magnitude)) == MagnitudeOf(op.out));
}

void QuantizeCases(const Subject& subject, Random& random, Sizes s) {
  Memory memory;
  QuantizeOp<TensorView> op{};
  op.scale_rounding = Flip(random) ? ScaleRounding::kExact : ScaleRounding::kPowerOfTwo;
  const DType dtype = Flip(random) ? DType::kE4M3 : DType::kE5M2;
  op.x = memory.NewRandom(random, PickFloat(random), {s.rows, s.columns}, PickRowStrides(random),
                          std::ldexp(1.0, static_cast<int>(Pick(random, -130, 100))));
  if (Flip(random)) Disturb(random, op.x);
  op.out = memory.New(dtype, {s.rows, s.columns});
  op.scales = memory.New(DType::kF32, {1, 1});
  if (Flip(random)) op.turned = memory.New(dtype, {s.rows, s.columns}, Strides::kTransposed);
  QuantizeOp<TensorView> looking = op;
  looking.out = memory.NewLike(op.out), looking.scales = memory.NewLike(op.scales);
  if (op.turned) looking.turned = memory.NewLike(op.turned);
  Run(subject, memory, subject.table.quantize, looking);
  op.magnitude = memory.New(DType::kF32, {1});
  Set(op.magnitude, {0}, MagnitudeOf(op.x));
  Run(subject, memory, subject.table.quantize, op);
  INFO("quantize " << ToString(op.x.layout) << " to " << ToString(op.out.layout));
  CHECK(SameBits(op.scales, looking.scales));
  CHECK(SameBits(op.out, looking.out));
  if (op.turned) CHECK(SameBits(op.turned, looking.turned));
  // It is the magnitude that decides, where there is more than a block.
  if (s.rows <= 128 && s.columns <= 128) return;
  Set(op.magnitude, {0}, 2 * LargestOf(dtype));
  Run(subject, memory, subject.table.quantize, op);
  CHECK(Get(op.scales) == 2);
}

// An activation that is formed while it is quantized has the bits of one that was stored.
void ActivatedCases(const Subject& subject, Random& random, Sizes s) {
  Memory memory;
  const Form form(random);
  ActivationOp<TensorView> activation{};
  activation.kind = Flip(random) ? ActivationKind::kGelu : ActivationKind::kSwiglu;
  const int64_t wide = IsGated(activation.kind) ? 2 * s.columns : s.columns;
  activation.x = form.New(memory, random, s.rows, wide, 4);
  activation.out = memory.New(activation.x.dtype(), {s.rows, s.columns});
  Disturb(random, activation.x);
  Run(subject, memory, subject.table.activation, activation);

  const auto count = [](int64_t n) { return std::max<int64_t>(1, (n + 127) / 128); };
  QuantizeOp<TensorView> stored{};
  stored.scale_rounding = ScaleRounding::kPowerOfTwo;
  stored.x = activation.out;
  stored.out = memory.New(DType::kE4M3, {s.rows, s.columns});
  stored.scales = memory.New(DType::kF32, {s.rows, count(s.columns)});
  stored.turned = memory.New(DType::kE4M3, {s.rows, s.columns}, Strides::kTransposed);
  stored.turned_scales = memory.New(DType::kF32, {count(s.rows), s.columns});
  QuantizeOp<TensorView> formed = stored;
  formed.x = activation.x;
  formed.activation = activation.kind;
  formed.out = memory.NewLike(stored.out), formed.scales = memory.NewLike(stored.scales);
  formed.turned = memory.NewLike(stored.turned);
  formed.turned_scales = memory.NewLike(stored.turned_scales);
  REQUIRE(WhyUnsupported(ConvertOp<QuantizeOp, TensorView, Shape>(formed, ShapeOf),
                         subject.backend) == "");
  Run(subject, memory, subject.table.quantize, stored);
  Run(subject, memory, subject.table.quantize, formed);
  INFO("activation " << static_cast<int>(activation.kind) << " of "
                     << ToString(activation.x.layout));
  CHECK(SameBits(formed.out, stored.out));
  CHECK(SameBits(formed.scales, stored.scales));
  CHECK(SameBits(formed.turned, stored.turned));
  CHECK(SameBits(formed.turned_scales, stored.turned_scales));
}

}  // namespace

void MagnitudeContract(const Subject& subject) {
  Random random(34);
  for (int repeat = 0; repeat < 4; ++repeat) {
    for (const Sizes s : kSizesOfRows) {
      NormCases(subject, random, s);
      NormGradCases(subject, random, s);
      ActivationCases(subject, random, s);
      ColumnSumCases(subject, random, s);
    }
    for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kBiasGelu, Epilogue::kGeluGrad})
      ProductCases(subject, random, epilogue);
    for (const Sizes s :
         {Sizes{0, 3}, {3, 0}, {1, 1}, {128, 128}, {129, 257}, {5, 700}, {300, 130}})
      QuantizeCases(subject, random, s);
    for (const Sizes s :
         {Sizes{0, 8}, {1, 1}, {5, 13}, {48, 144}, {144, 160}, {130, 272}, {129, 257}})
      for (int again = 0; again < 2; ++again) ActivatedCases(subject, random, s);
  }
  ColumnSumCases(subject, random, {4097, 264});  // more than one launch sums
  ColumnSumCases(subject, random, {4200, 33});
}

}  // namespace millrace::test
