// A flat parameter whose matrices are gathered in FP8 (precision.gather=linear): after each write
// of its weights every rank quantizes its shard, once, and gathers move payloads of 8 bits.
//
// Bits     What is quantized is a weight rounded to the compute dtype. So payloads and scales are
//          those that QuantizeOp (fp8_ops.h) makes of a gathered matrix, bit for bit: a block's
//          largest magnitude is that of its parts' largest, in any order.
// Table    f32 [ranks, S + P], a row from each rank that has a shard, S scales in all. First, of
//          each scale's block, the largest finite magnitude among the shard's elements of it; 0
//          where it has none. Then the shard's elements of the rest, in order, and zeros up to P.
// Rest     Parameters of the flat that no product takes in FP8, biases say, stay in the compute
//          dtype. They are small, and come to all ranks with the table.
// n is a shard's elements; element i of it is flat element flat_begin + i.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/access.h"
#include "kernels/ops/fp8_ops.h"
#include "runtime/base/dtype.h"
#include "runtime/base/mesh.h"

namespace millrace {

// A matrix [rows, columns] of the flat from element `begin` on, row by row. Its scales
// [scale_rows, scale_columns] (Blocks, fp8_ops.h) are those of the flat from `scales` on.
struct FlatMatrix {
  int64_t begin = 0, rows = 0, columns = 0;
  int64_t scale_rows = 1, scale_columns = 1, scales = 0;

  int64_t end() const { return begin + rows * columns; }
  bool operator==(const FlatMatrix&) const = default;
};

// Flat elements [begin, end) of the rest, which are elements of it from `at` on.
struct FlatRest {
  int64_t begin = 0, end = 0, at = 0;
  bool operator==(const FlatRest&) const = default;
};

struct FlatEncoding {
  DType compute = DType::kF32;
  ScaleRounding scale_rounding = ScaleRounding::kExact;
  int64_t shard_numel = 0;
  std::vector<FlatMatrix> matrices;  // ascending and disjoint, and `rest` with them
  std::vector<FlatRest> rest;        // end to end: the first at 0
  int64_t scales = 0;                // S
  int64_t rest_numel = 0;            // R
  int64_t most_rest = 0;             // P: no shard has more of them

  int64_t row() const { return scales + most_rest; }
  // How many elements of the rest lie before a flat element.
  int64_t RestBefore(int64_t flat) const {
    int64_t before = 0;
    for (const FlatRest& part : rest)
      before += std::clamp<int64_t>(flat - part.begin, 0, part.end - part.begin);
    return before;
  }
  bool operator==(const FlatEncoding&) const = default;
};
std::string ToString(const FlatEncoding& encoding);
using FlatEncodingRef = std::shared_ptr<const FlatEncoding>;

// A rank's row of the table.   master f32 [n], row f32 [S + P].
struct ShardMagnitudesAttrs {
  FlatEncodingRef encoding;
  RankInt flat_begin;
  bool operator==(const ShardMagnitudesAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.flat_begin, "flat_begin");
  }
};
template <class V>
struct ShardMagnitudesOp : ShardMagnitudesAttrs {
  using Attrs = ShardMagnitudesAttrs;
  static constexpr const char* kName = "shard_magnitudes";
  V master, row;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.master, Access::kRead, "master");
    f(s.row, Access::kWrite, "row");
  }
};

// scales[s] of the largest that the table's rows have at s; rest[i] from the row of the rank that
// has it, rounded.
// table f32 [ranks, S + P], scales f32 [S], rest compute [R], absent where R is 0.
struct FlatScalesAttrs {
  FlatEncodingRef encoding;
  bool operator==(const FlatScalesAttrs&) const = default;
};
template <class V>
struct FlatScalesOp : FlatScalesAttrs {
  using Attrs = FlatScalesAttrs;
  static constexpr const char* kName = "flat_scales";
  V table, scales, rest;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.table, Access::kRead, "table");
    f(s.scales, Access::kWrite, "scales");
    f(s.rest, Access::kWrite, "rest");
  }
};

// Payloads of the shard's elements of matrices; 0 of all others.
// master f32 [n], scales f32 [S], payload e4m3 [n].
struct ShardQuantizeAttrs {
  FlatEncodingRef encoding;
  RankInt flat_begin;
  bool operator==(const ShardQuantizeAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.flat_begin, "flat_begin");
  }
};
template <class V>
struct ShardQuantizeOp : ShardQuantizeAttrs {
  using Attrs = ShardQuantizeAttrs;
  static constexpr const char* kName = "shard_quantize";
  V master, scales, payload;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.master, Access::kRead, "master");
    f(s.scales, Access::kRead, "scales");
    f(s.payload, Access::kWrite, "payload");
  }
};

// f(scale, begin, n) for the pieces of the shard that have one scale, in order: n elements
// from `begin` of the shard on, with the scale `scale` of the flat. `numel` of the shard.
template <class F>
void ForScalePieces(const FlatEncoding& encoding, int64_t flat_begin, int64_t numel, F&& f) {
  const int64_t flat_end = flat_begin + numel;
  for (const FlatMatrix& m : encoding.matrices) {
    const int64_t block_rows = ScaleBlockOf(m.rows, m.scale_rows),
                  block_columns = ScaleBlockOf(m.columns, m.scale_columns);
    const int64_t last = std::min(flat_end, m.end());
    for (int64_t at = std::max(flat_begin, m.begin); at < last;) {
      const int64_t row = (at - m.begin) / m.columns, column = (at - m.begin) % m.columns,
                    block = column / block_columns,
                    end = std::min(
                        {last, at - column + m.columns, at - column + (block + 1) * block_columns});
      f(m.scales + row / block_rows * m.scale_columns + block, at - flat_begin, end - at);
      at = end;
    }
  }
}

// f(begin, n, k) for the parts of the rest in a shard, in order: n elements from `begin` of the
// shard on are the k-th of the shard's elements of the rest and those behind it.
template <class F>
void ForRestPieces(const FlatEncoding& encoding, int64_t flat_begin, int64_t numel, F&& f) {
  int64_t k = 0;
  for (const FlatRest& part : encoding.rest) {
    const int64_t begin = std::max(flat_begin, part.begin),
                  end = std::min(flat_begin + numel, part.end);
    if (begin >= end) continue;
    f(begin - flat_begin, end - begin, k);
    k += end - begin;
  }
}

}  // namespace millrace
