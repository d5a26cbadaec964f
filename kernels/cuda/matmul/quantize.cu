#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/matmul/float8.cuh"
#include "kernels/cuda/matmul/quantize_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kTile = static_cast<int>(kScaleBlock);
constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kRows = 4;                // of a thread, neighbours
constexpr int kAcross = kTile / kPack;  // threads that share a row of a tile

// A thread of a tile has 4 x 8 elements: the columns of one pack, in four rows.
struct Place {
  int across;       // pack of the tile's row
  int down;         // which four rows of the tile
  int row, column;  // of its first element

  __device__ explicit Place(int tiles_across)
      : across(static_cast<int>(threadIdx.x) % kAcross),
        down(static_cast<int>(threadIdx.x) / kAcross),
        row(static_cast<int>(blockIdx.x) / tiles_across * kTile + down * kRows),
        column(static_cast<int>(blockIdx.x) % tiles_across * kTile + across * kPack) {}
};

__device__ __forceinline__ void StoreScale(const Scales& scales, int row, int column, float scale) {
  if (scales.data != nullptr && row < scales.rows && column < scales.columns)
    scales.data[row * scales.row_stride + column * scales.column_stride] = scale;
}

// What a thread has of the tile.
template <Elements E>
struct Values {
  Raw<E> rows[kRows];
  bool finite;  // all of them

  // What follows is computed from the values anew, not kept in registers from what came before.
  __device__ __forceinline__ void ForgetAll() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) Forget(rows[r]);
  }
};

using Payload = uint2[kRows];

// Of a pack of finite numbers. divisor_of(i) is that of its i-th.
template <bool kE5M2, class F>
__device__ __forceinline__ uint2 PayloadOf(const Floats& x, F&& divisor_of) {
  const auto pair = [&](int i) {
    return PairOfFloat8<kE5M2>(divisor_of(i).Divide(x.v[i]), divisor_of(i + 1).Divide(x.v[i + 1]));
  };
  return make_uint2(pair(0) | pair(2) << 16, pair(4) | pair(6) << 16);
}

// Where the values are not finite.
template <Elements E>
__device__ __forceinline__ void PutNans(const Rows& rows, const Values<E>& x, Payload& payload) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Floats values = ToFloats<E>(rows, x.rows[r]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (IsFinite(values.v[i])) continue;
      uint32_t& word = i < 4 ? payload[r].x : payload[r].y;
      const int shift = 8 * (i % 4);
      word = (word & ~(0xffu << shift)) | Float8NanOf(values.v[i]) << shift;
    }
  }
}

// Bytes [r][c] of 4 x 4 become [c][r].
__device__ __forceinline__ void Transpose4(uint32_t (&w)[4]) {
  const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140),
                 c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

// Of a block of threads: maxima and scales of the tile's columns, and its payload by columns.
struct Shared {
  alignas(16) uint32_t most[kWarps][kTile];
  float scales[kTile];
  // Words of four rows; that of column c and rows from 4 d on lies at d ^ 2 (c / 8): the threads of
  // a warp reach all banks.
  alignas(16) uint32_t columns[kTile][kTile / kRows];
};

template <bool kWhole>
__device__ __forceinline__ void StoreByRows(const QuantizedForm& form, const QuantizeArgs& a,
                                            const Place& at, const Payload& payload) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.row + r >= a.rows || at.column >= a.columns) continue;
    uint8_t* const to = form.data + (at.row + r) * form.line_stride + at.column;
    if (kWhole || (form.wide && at.column + kPack <= a.columns)) {
      *reinterpret_cast<uint2*>(to) = payload[r];
    } else if constexpr (!kWhole) {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (at.column + i < a.columns)
          to[i] = static_cast<uint8_t>((i < 4 ? payload[r].x : payload[r].y) >> (8 * (i % 4)));
    }
  }
}

// Through shared memory, so that a column's 128 bytes leave together.
template <bool kWhole>
__device__ __forceinline__ void StoreByColumns(const QuantizedForm& form, const QuantizeArgs& a,
                                               const Place& at, const Payload& payload,
                                               Shared& shared) {
  uint32_t left[kRows], right[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) left[r] = payload[r].x, right[r] = payload[r].y;
  Transpose4(left), Transpose4(right);
#pragma unroll
  for (int c = 0; c < kPack; ++c)
    shared.columns[at.across * kPack + c][at.down ^ (2 * at.across)] =
        c < 4 ? left[c] : right[c - 4];
  __syncthreads();
  const int first_row = at.row - at.down * kRows, first_column = at.column - at.across * kPack;
#pragma unroll
  for (int turn = 0; turn < kTile * kTile / 16 / kThreads; ++turn) {
    const int unit = turn * kThreads + static_cast<int>(threadIdx.x);
    const int column = unit / 8, sixteen = unit % 8, key = column / kPack;
    uint4 words =
        *reinterpret_cast<const uint4*>(&shared.columns[column][4 * (sixteen ^ (key / 2))]);
    if (key % 2 != 0) words = make_uint4(words.z, words.w, words.x, words.y);
    const int row = first_row + sixteen * 16;
    if (first_column + column >= a.columns || row >= a.rows) continue;
    uint8_t* const to = form.data + (first_column + column) * form.line_stride + row;
    if (kWhole || (form.wide && row + 16 <= a.rows)) {
      *reinterpret_cast<uint4*>(to) = words;
    } else if constexpr (!kWhole) {
      const uint32_t in_turn[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (row + i < a.rows) to[i] = static_cast<uint8_t>(in_turn[i / 4] >> (8 * (i % 4)));
    }
  }
}

// The scale of the block that the tile has, and 1 where there are scales behind the last tile's.
__device__ void StoreTileScale(const Scales& scales, const QuantizeArgs& a, const Place& at,
                               float scale) {
  const int row = at.row / kTile, column = at.column / kTile;
  const int rows = (row + 1) * kTile >= a.rows ? scales.rows : row + 1,
            columns = (column + 1) * kTile >= a.columns ? scales.columns : column + 1;
  for (int r = row; r < rows; ++r)
    for (int c = column; c < columns; ++c)
      StoreScale(scales, r, c, r == row && c == column ? scale : 1.0f);
}
// Of a row in the tile's columns.
__device__ __forceinline__ void StoreRowScale(const Scales& scales, const QuantizeArgs& a, int row,
                                              int column, float scale) {
  const int block = column / kTile;
  StoreScale(scales, row, block, scale);
  if ((block + 1) * kTile < a.columns) return;
  for (int c = block + 1; c < scales.columns; ++c) StoreScale(scales, row, c, 1.0f);
}
// Of a column in the tile's rows.
__device__ __forceinline__ void StoreColumnScale(const Scales& scales, const QuantizeArgs& a,
                                                 int row, int column, float scale) {
  const int block = row / kTile;
  StoreScale(scales, block, column, scale);
  if ((block + 1) * kTile < a.rows) return;
  for (int r = block + 1; r < scales.rows; ++r) StoreScale(scales, r, column, 1.0f);
}

template <Elements E, bool kE5M2, bool kPowers>
__device__ __forceinline__ void ByRowScales(const QuantizedForm& form, const QuantizeArgs& a,
                                            const Place& at, const Values<E>& x, Payload& payload) {
  uint32_t most[kRows];
  if (x.finite) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) most[r] = Most<E>::Of(x.rows[r]);
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) most[r] = MostFinite<E>(a.x, x.rows[r]);
  }
#pragma unroll
  for (int lane = kAcross / 2; lane > 0; lane /= 2)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      most[r] = max(most[r], __shfl_xor_sync(0xffffffffu, most[r], lane));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float scale = ScaleFor<kPowers>(most[r], a.largest);
    if (at.across == 0) StoreRowScale(form.scales, a, at.row + r, at.column, scale);
    const ScaleDivisor<kPowers> divisor(scale);
    payload[r] = PayloadOf<kE5M2>(ToFloats<E>(a.x, x.rows[r]), [&](int) { return divisor; });
  }
}

template <Elements E, bool kE5M2, bool kPowers>
__device__ __forceinline__ void ByColumnScales(const QuantizedForm& form, const QuantizeArgs& a,
                                               const Place& at, Values<E>& x, Payload& payload,
                                               Shared& shared) {
  uint32_t most[kPack];
  if (x.finite) {
    MostOfColumns<E> columns;
#pragma unroll
    for (int r = 0; r < kRows; ++r) columns.Add(x.rows[r]);
    columns.Get(most);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) most[i] = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Floats values = ToFloats<E>(a.x, x.rows[r]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) most[i] = max(most[i], FiniteBits(values.v[i]));
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    most[i] = max(most[i], __shfl_xor_sync(0xffffffffu, most[i], kAcross));
  if (threadIdx.x % kWarp < kAcross) {
    uint4* const to = reinterpret_cast<uint4*>(&shared.most[warp][at.across * kPack]);
    to[0] = make_uint4(most[0], most[1], most[2], most[3]);
    to[1] = make_uint4(most[4], most[5], most[6], most[7]);
  }
  x.ForgetAll();
  __syncthreads();
  if (threadIdx.x < kTile) {
    uint32_t of_column = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of_column = max(of_column, shared.most[w][threadIdx.x]);
    const float scale = ScaleFor<kPowers>(of_column, a.largest);
    shared.scales[threadIdx.x] = scale;
    StoreColumnScale(form.scales, a, at.row - at.down * kRows,
                     at.column - at.across * kPack + static_cast<int>(threadIdx.x), scale);
  }
  __syncthreads();
  ScaleDivisor<kPowers> divisors[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    divisors[i] = ScaleDivisor<kPowers>(shared.scales[at.across * kPack + i]);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    payload[r] = PayloadOf<kE5M2>(ToFloats<E>(a.x, x.rows[r]), [&](int i) { return divisors[i]; });
}

template <Elements E, bool kE5M2, bool kPowers>
__device__ __forceinline__ void ByOneScale(const QuantizedForm& form, const QuantizeArgs& a,
                                           const Place& at, const Values<E>& x, Payload& payload,
                                           Shared& shared) {
  float scale;
  if (form.share == ScaleShare::kTensor) {
    scale = a.magnitude == nullptr ? *a.tensor_scale : ScaleFor<kPowers>(*a.magnitude, a.largest);
    if (a.magnitude != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
      StoreScale(form.scales, 0, 0, scale);
  } else {
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      most = max(most, x.finite ? Most<E>::Of(x.rows[r]) : MostFinite<E>(a.x, x.rows[r]));
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % kWarp == 0) shared.most[0][threadIdx.x / kWarp] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = max(most, shared.most[0][w]);
    scale = ScaleFor<kPowers>(most, a.largest);
    if (threadIdx.x == 0) StoreTileScale(form.scales, a, at, scale);
  }
  const ScaleDivisor<kPowers> divisor(scale);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    payload[r] = PayloadOf<kE5M2>(ToFloats<E>(a.x, x.rows[r]), [&](int) { return divisor; });
}

// What is quantized: elements, or an activation of them.
enum class Before { kNothing, kGelu, kSwiglu };

// kWhole: every pack, of values and of payloads, is one access. `first`: of the columns.
template <Elements E, bool kWhole>
__device__ __forceinline__ Raw<E> LoadRow(const QuantizeArgs& a, int row, int column,
                                          int first = 0) {
  if (row >= a.rows || column >= a.columns) return {};
  const int64_t index = row * a.x.stride + first + column;
  if constexpr (kWhole)
    return {*reinterpret_cast<const uint4*>(reinterpret_cast<const uint16_t*>(a.x.data) + index)};
  else
    return LoadRaw<E>(a.x, index, min(a.columns - column, kPack));
}

// A pack of the activation, as CudaActivation stores it.
template <Elements E, ActivationKind kKind>
__device__ __forceinline__ Raw<E> Activated(const Rows& rows, const Raw<E>& x, const Raw<E>& up) {
  const Floats gate = ToFloats<E>(rows, x), other = ToFloats<E>(rows, up);
  Floats y;
#pragma unroll
  for (int i = 0; i < kPack; ++i) y.v[i] = Activate<kKind>(gate.v[i], other.v[i]);
  return FromFloats<E>(rows, y);
}

template <Elements E, Before kBefore, bool kWhole>
__device__ __forceinline__ void LoadValues(const QuantizeArgs& a, const Place& at, Values<E>& x) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) x.rows[r] = LoadRow<E, kWhole>(a, at.row + r, at.column);
  if constexpr (kBefore == Before::kGelu) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      x.rows[r] = Activated<E, ActivationKind::kGelu>(a.x, x.rows[r], {});
  } else if constexpr (kBefore == Before::kSwiglu) {
    Raw<E> up[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) up[r] = LoadRow<E, kWhole>(a, at.row + r, at.column, a.columns);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      x.rows[r] = Activated<E, ActivationKind::kSwiglu>(a.x, x.rows[r], up[r]);
  }
}

template <Elements E, Before kBefore, bool kE5M2, bool kPowers, bool kWhole>
__global__ void __launch_bounds__(kThreads, kWhole ? 2 : 1)
    QuantizeKernel(const __grid_constant__ QuantizeArgs a, const int tiles_across) {
  BeginKernel();
  __shared__ Shared shared;
  const Place at(tiles_across);
  Values<E> x;
  LoadValues<E, kBefore, kWhole>(a, at, x);
  Most<E> most;
#pragma unroll
  for (int r = 0; r < kRows; ++r) most.Add(x.rows[r]);
  x.finite = most.Get() < kInfinity;
#pragma unroll 1
  for (int f = 0; f < 2; ++f) {
    const QuantizedForm& form = a.forms[f];
    if (form.data == nullptr) break;
    if (f > 0) __syncthreads();  // the form before has read what it shares
    x.ForgetAll();
    Payload payload;
    switch (form.share) {
      case ScaleShare::kRow:
        ByRowScales<E, kE5M2, kPowers>(form, a, at, x, payload);
        break;
      case ScaleShare::kColumn:
        ByColumnScales<E, kE5M2, kPowers>(form, a, at, x, payload, shared);
        break;
      case ScaleShare::kTensor:
      case ScaleShare::kTile:
        ByOneScale<E, kE5M2, kPowers>(form, a, at, x, payload, shared);
        break;
    }
    if (!x.finite) PutNans<E>(a.x, x, payload);
    if (form.by_columns)
      StoreByColumns<kWhole>(form, a, at, payload, shared);
    else
      StoreByRows<kWhole>(form, a, at, payload);
  }
}

}  // namespace

void LaunchQuantize(const QuantizeArgs& args, Elements elements, bool e5m2,
                    std::optional<ActivationKind> activation, const Launch& launch) {
  const auto tiles = [](int64_t n) { return std::max(static_cast<int>(CeilDiv(n, kTile)), 1); };
  const auto blocks =
      static_cast<unsigned>(tiles(args.rows)) * static_cast<unsigned>(tiles(args.columns));
  bool whole = args.x.wide && args.columns % kPack == 0;
  for (const QuantizedForm& form : args.forms)
    whole &= form.data == nullptr || (form.wide && (!form.by_columns || args.rows % 16 == 0));
  const auto with = [&]<Elements E, Before kBefore, bool kE5M2, bool kWhole>() {
    LaunchKernel(launch, blocks, kThreads, 0,
                 args.powers ? QuantizeKernel<E, kBefore, kE5M2, true, kWhole>
                             : QuantizeKernel<E, kBefore, kE5M2, false, kWhole>,
                 args, tiles(args.columns));
  };
  const auto of = [&]<Elements E, bool kWhole>() {
    if (activation == ActivationKind::kGelu)
      return with.template operator()<E, Before::kGelu, false, kWhole>();
    if (activation == ActivationKind::kSwiglu)
      return with.template operator()<E, Before::kSwiglu, false, kWhole>();
    return e5m2 ? with.template operator()<E, Before::kNothing, true, kWhole>()
                : with.template operator()<E, Before::kNothing, false, kWhole>();
  };
  if (elements != Elements::kBF16) return of.template operator()<Elements::kF32, false>();
  if (whole) return of.template operator()<Elements::kBF16, true>();
  of.template operator()<Elements::kBF16, false>();
}

}  // namespace millrace::cuda
