// Flat parameters that ranks quantize shard by shard (kernels/ops/fp8_flat_ops.h), and the turned
// forms of what they gather. Every bit has to be that of the whole matrix, quantized at once.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/ops/fp8_flat_ops.h"
#include "kernels/ops/matmul_key.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/float8.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/float8_blocks.h"

namespace millrace::test {
namespace {

// Scales of blocks of 128 along n: those that there are, or with some that no block has.
int64_t Scales(Random& random, int64_t n) {
  const int64_t blocks = CeilDiv(n, kScaleBlock);
  return Flip(random) ? blocks : RoundUp(blocks, kScaleMultiple);
}

// Matrices and other parameters in any order, with gaps in between, cut into shards.
FlatEncoding RandomEncoding(Random& random, int ranks) {
  FlatEncoding encoding;
  encoding.compute = Flip(random) ? DType::kF32 : DType::kBF16;
  const bool blocks = Flip(random);
  encoding.scale_rounding = blocks ? ScaleRounding::kPowerOfTwo : ScaleRounding::kExact;
  int64_t end = 0;
  const int64_t params = Pick(random, 1, 6);
  for (int64_t p = 0; p < params; ++p) {
    end += Flip(random) ? 0 : Pick(random, 1, 40);
    if (Pick(random, 0, 2) == 0) {
      const int64_t numel = Pick(random, 1, 300);
      encoding.rest.push_back({end, end + numel, encoding.rest_numel});
      encoding.rest_numel += numel;
      end += numel;
      continue;
    }
    FlatMatrix m{end, Pick(random, 1, 300), Pick(random, 1, 300), 1, 1, encoding.scales};
    if (blocks) m.scale_rows = CeilDiv(m.rows, kScaleBlock);
    if (blocks) m.scale_columns = Scales(random, m.columns);
    encoding.scales += m.scale_rows * m.scale_columns;
    encoding.matrices.push_back(m);
    end = m.end();
  }
  encoding.shard_numel = CeilDiv(end + Pick(random, 0, 20), ranks);
  for (int r = 0; r < ranks; ++r)
    encoding.most_rest =
        std::max(encoding.most_rest, encoding.RestBefore((r + 1) * encoding.shard_numel) -
                                         encoding.RestBefore(r * encoding.shard_numel));
  return encoding;
}

// Runs of elements have a size of their own, from the least floats to the largest, or are zeros.
TensorView NewMaster(Memory& memory, Random& random, int64_t numel) {
  const TensorView master = memory.New(DType::kF32, {numel});
  double size = 1;
  ForEach(master.layout, [&](const Index& i) {
    if (i[0] % 97 == 0)
      size =
          Pick(random, 0, 9) == 0 ? 0 : std::ldexp(1.0, static_cast<int>(Pick(random, -140, 126)));
    Set(master, i, std::uniform_real_distribution<double>(-1.9, 1.9)(random) * size);
  });
  return master;
}

// Of the whole flat: its elements rounded, each element's scale (none: -1) and all scales.
struct Whole {
  std::vector<float> values;
  std::vector<int64_t> scale_of;
  std::vector<float> scales;
};
Whole WholeOf(Memory& memory, const FlatEncoding& encoding, const TensorView& master) {
  const TensorView rounded = memory.New(encoding.compute, {master.numel()});
  Whole whole;
  ForEach(master.layout, [&](const Index& i) {
    Set(rounded, i, Get(master, i));
    whole.values.push_back(static_cast<float>(Get(rounded, i)));
  });
  whole.scale_of.assign(whole.values.size(), -1);
  whole.scales.assign(static_cast<size_t>(encoding.scales), 0);
  for (const FlatMatrix& m : encoding.matrices) {
    const bool one =
        m.scale_rows * m.scale_columns == 1 && encoding.scale_rounding == ScaleRounding::kExact;
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < m.columns; ++c) {
        const auto element = static_cast<size_t>(m.begin + r * m.columns + c);
        const int64_t scale =
            m.scales + (one ? 0 : r / kScaleBlock * m.scale_columns + c / kScaleBlock);
        whole.scale_of[element] = scale;
        float& most = whole.scales[static_cast<size_t>(scale)];
        const float magnitude = std::abs(whole.values[element]);
        if (std::isfinite(magnitude)) most = std::max(most, magnitude);
      }
  }
  for (float& scale : whole.scales) scale = ScaleFor(scale, 448, encoding.scale_rounding);
  return whole;
}

// Which NaN does not matter.
bool Same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }
bool IsNan(uint8_t e4m3) { return (e4m3 & 0x7f) == 0x7f; }

void EncodingCase(const Subject& subject, Random& random, int ranks) {
  Memory memory;
  const auto encoding = std::make_shared<const FlatEncoding>(RandomEncoding(random, ranks));
  const int64_t n = encoding->shard_numel, row = encoding->row();
  INFO(ToString(*encoding) << " on " << ranks << " ranks");
  const TensorView master = NewMaster(memory, random, ranks * n);
  // Infinities and NaNs enter no scale.
  for (const float bad : {INFINITY, -INFINITY, NAN})
    Set(master, {Pick(random, 0, ranks * n - 1)}, bad);
  const Whole whole = WholeOf(memory, *encoding, master);
  const TensorView table = memory.New(DType::kF32, {ranks * row});
  const auto part = [](const TensorView& of, int64_t begin, int64_t count) {
    TensorView view = of;
    view.data += begin * Bytes(of.dtype());
    view.layout = DenseLayout(of.dtype(), {count});
    return view;
  };
  if (row > 0)
    for (int r = 0; r < ranks; ++r) {
      const ShardMagnitudesOp<TensorView> op{
          {encoding, r * n}, part(master, r * n, n), part(table, r * row, row)};
      Run(subject, memory, subject.table.shard_magnitudes, op);
    }
  if (row == 0) return;
  FlatScalesOp<TensorView> scales{{encoding}, table, {}, {}};
  scales.scales = memory.New(DType::kF32, {encoding->scales});
  if (encoding->rest_numel > 0) scales.rest = memory.New(encoding->compute, {encoding->rest_numel});
  Run(subject, memory, subject.table.flat_scales, scales);
  for (int64_t s = 0; s < encoding->scales; ++s)
    CHECK(Get(scales.scales, s) == whole.scales[static_cast<size_t>(s)]);
  for (const FlatRest& rest : encoding->rest)
    for (int64_t i = rest.begin; i < rest.end; ++i)
      CHECK(Same(static_cast<float>(Get(scales.rest, rest.at + i - rest.begin)),
                 whole.values[static_cast<size_t>(i)]));
  const TensorView payload = memory.New(DType::kE4M3, {ranks * n});
  for (int r = 0; r < ranks; ++r) {
    const ShardQuantizeOp<TensorView> op{
        {encoding, r * n}, part(master, r * n, n), scales.scales, part(payload, r * n, n)};
    Run(subject, memory, subject.table.shard_quantize, op);
  }
  int wrong = 0;
  for (size_t i = 0; i < whole.values.size(); ++i) {
    const int64_t scale = whole.scale_of[i];
    const uint8_t expected =
        scale < 0
            ? uint8_t{0}
            : ToFloat8(whole.values[i] / whole.scales[static_cast<size_t>(scale)], DType::kE4M3);
    const uint8_t got = payload.as<uint8_t>()[i];
    wrong += got != expected && !(IsNan(got) && IsNan(expected));
  }
  CHECK(wrong == 0);
}

}  // namespace

void FlatEncodingContract(const Subject& subject) {
  Random random(211);
  for (int repeat = 0; repeat < 60; ++repeat)
    EncodingCase(subject, random, static_cast<int>(Pick(random, 1, 5)));
}

void TurnContract(const Subject& subject) {
  Random random(223);
  for (const int64_t rows : {1, 3, 63, 64, 65, 130, 257})
    for (const int64_t columns : {1, 5, 64, 129, 300}) {
      Memory memory;
      TurnOp<TensorView> op{};
      const TensorView lines = memory.New(DType::kE4M3, {columns, rows}, PickRowStrides(random));
      op.payload = memory.New(DType::kE4M3, {rows, columns}, PickRowStrides(random));
      op.turned = TransposedView(lines);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          Set(op.payload, {r, c},
              ValuesOf(DType::kE4M3)[static_cast<size_t>(Pick(random, 0, 126))]);
      const int64_t row_blocks = CeilDiv(rows, kScaleBlock),
                    column_blocks = CeilDiv(columns, kScaleBlock);
      if (Flip(random)) {
        op.scales = memory.NewRandom(random, DType::kF32, {row_blocks, Scales(random, columns)});
        op.turned_scales =
            TransposedView(memory.New(DType::kF32, {column_blocks, Scales(random, rows)}));
      }
      Run(subject, memory, subject.table.turn, op);
      INFO("turn " << rows << " x " << columns);
      int wrong = 0;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          wrong += Get(op.turned, r, c) != Get(op.payload, r, c);
      CHECK(wrong == 0);
      if (!op.scales) continue;
      ForEach(op.turned_scales.layout, [&](const Index& i) {
        const bool block = i[0] < row_blocks && i[1] < column_blocks;
        CHECK(Get(op.turned_scales, i) == (block ? Get(op.scales, i) : 1));
      });
    }
}

}  // namespace millrace::test
