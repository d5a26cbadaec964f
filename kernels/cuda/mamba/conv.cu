#include "kernels/cuda/mamba/gated.cuh"
#include "kernels/cuda/mamba/mamba_launch.h"
#include "kernels/ops/cuda_ssd.h"
#include "runtime/base/cuda/launch.cuh"

// A block takes 256 positions of one sequence and 128 channels: a warp has 32 of the positions, a
// thread four channels of them. It takes four positions at a time, with the next four on their way:
// a thread waits for memory once for all of them, and a window moves without copies.
namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kParts = 8, kTaps = 4, kBefore = kTaps - 1;
constexpr int kOf = 4, kStep = 4;  // channels of a thread, positions at a time
constexpr int kPartRows = static_cast<int>(kMambaConvRows) / kParts;
static_assert(kPartRows % kStep == 0);

// Four channels of a position, as they lie: two words of bf16 pairs, or four of f32.
template <Elements E>
struct Quad {
  uint32_t w[E == Elements::kBF16 ? 2 : 4];
};

// Where a thread works; taps that a narrower convolution lacks stay out of its sums.
struct Channels {
  int batch, channel, count, begin, part, first_tap;
  bool inside;

  __device__ explicit Channels(const ConvArgs& a)
      : batch(blockIdx.z),
        channel(static_cast<int>(blockIdx.x * kWarp + threadIdx.x % kWarp) * kOf),
        part(static_cast<int>(threadIdx.x) / kWarp),
        first_tap(kTaps - a.width) {
    count = a.channels - channel;
    begin = static_cast<int>(blockIdx.y * kMambaConvRows) + part * kPartRows;
    inside = count > 0 && begin < a.length;
  }
};

__device__ __forceinline__ int64_t PlaceOf(const Sequence& s, const Channels& c, int t) {
  return c.batch * s.batch_stride + t * s.rows.stride + c.channel;
}

// Zeros outside of the sequence.
template <Elements E>
__device__ __forceinline__ Quad<E> QuadOf(const Sequence& s, const Channels& c, int t, int length) {
  Quad<E> quad{};
  if (t < 0 || t >= length) return quad;
  const int64_t at = PlaceOf(s, c, t);
  const bool whole = s.rows.wide && c.count >= kOf;
  if (AreShort<E>(s.rows)) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(s.rows.data) + at;
    if (whole) {
      const uint2 w = *reinterpret_cast<const uint2*>(p);
      quad.w[0] = w.x, quad.w[1] = w.y;
    } else {
#pragma unroll
      for (int i = 0; i < kOf; ++i)
        if (i < c.count) quad.w[i / 2] |= static_cast<uint32_t>(p[i]) << (16 * (i % 2));
    }
  } else if constexpr (E != Elements::kBF16) {
    const uint32_t* p = reinterpret_cast<const uint32_t*>(s.rows.data) + at;
#pragma unroll
    for (int i = 0; i < kOf; ++i)
      if (i < c.count) quad.w[i] = p[i];
  }
  return quad;
}

template <Elements E>
__device__ __forceinline__ void Unpack(const Rows& rows, const Quad<E>& quad, float (&v)[kOf]) {
#pragma unroll
  for (int i = 0; i < kOf; ++i)
    if (AreShort<E>(rows))
      v[i] = __uint_as_float(i % 2 == 0 ? quad.w[i / 2] << 16 : quad.w[i / 2] & 0xffff0000u);
    else if constexpr (E != Elements::kBF16)
      v[i] = __uint_as_float(quad.w[i]);
}

template <Elements E>
__device__ __forceinline__ void StoreQuad(const Sequence& s, const Channels& c, int t,
                                          const float (&v)[kOf]) {
  const int64_t at = PlaceOf(s, c, t);
  if (AreShort<E>(s.rows)) {
    uint16_t* p = reinterpret_cast<uint16_t*>(s.rows.data) + at;
    const uint32_t w[2] = {PairOfBF16(v[0], v[1]), PairOfBF16(v[2], v[3])};
    if (s.rows.wide && c.count >= kOf) {
      *reinterpret_cast<uint2*>(p) = make_uint2(w[0], w[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kOf; ++i)
        if (i < c.count) p[i] = static_cast<uint16_t>(w[i / 2] >> (16 * (i % 2)));
    }
  } else if constexpr (E != Elements::kBF16) {
    float* p = reinterpret_cast<float*>(s.rows.data) + at;
#pragma unroll
    for (int i = 0; i < kOf; ++i)
      if (i < c.count) p[i] = v[i];
  }
}

template <Elements E>
using Quads = Quad<E>[kStep];

template <Elements E>
__device__ __forceinline__ void LoadQuads(const Sequence& s, const Channels& c, int t, int length,
                                          Quads<E>& quads) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) quads[i] = QuadOf<E>(s, c, t + i, length);
}

// Values of kStep positions behind those of the kBefore positions before them.
struct Window {
  float v[kBefore + kStep][kOf];

  __device__ void Move() {
#pragma unroll
    for (int k = 0; k < kBefore; ++k)
#pragma unroll
      for (int i = 0; i < kOf; ++i) v[k][i] = v[kStep + k][i];
  }
};

template <Elements E>
__device__ __forceinline__ void Fill(const Sequence& s, const Quads<E>& quads, Window& window) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) Unpack<E>(s.rows, quads[i], window.v[kBefore + i]);
}

// The positions before a part.
template <Elements E>
__device__ __forceinline__ void FillBefore(const Sequence& s, const Channels& c, int length,
                                           Window& window) {
#pragma unroll
  for (int k = 0; k < kBefore; ++k)
    Unpack<E>(s.rows, QuadOf<E>(s, c, c.begin - kBefore + k, length), window.v[k]);
}

__device__ __forceinline__ void LoadTaps(const ConvArgs& a, const Channels& c,
                                         float (&taps)[kTaps][kOf], float (&bias)[kOf]) {
#pragma unroll
  for (int i = 0; i < kOf; ++i) {
    const bool there = i < c.count;
    bias[i] = there ? ElementOf(a.bias, c.channel + i) : 0.0f;
#pragma unroll
    for (int k = 0; k < kTaps; ++k)
      taps[k][i] = there && k >= c.first_tap
                       ? ElementOf(a.weight, int64_t{c.channel + i} * a.width + k - c.first_tap)
                       : 0.0f;
  }
}

// Of position `s` of a window, channel i.
__device__ __forceinline__ float Convolved(const float (&taps)[kTaps][kOf], const Window& x,
                                           const float (&bias)[kOf], int first_tap, int s, int i) {
  float u = bias[i];
#pragma unroll
  for (int k = 0; k < kTaps; ++k)
    if (k >= first_tap) u = __fmaf_rn(taps[k][i], x.v[s + k][i], u);
  return u;
}

template <Elements E>
__global__ void __launch_bounds__(kThreads) ConvKernel(const ConvArgs a) {
  BeginKernel();
  const Channels c(a);
  if (!c.inside) return;
  Quads<E> next;
  LoadQuads<E>(a.x, c, c.begin, a.length, next);
  float taps[kTaps][kOf], bias[kOf];
  LoadTaps(a, c, taps, bias);
  Window x;
  FillBefore<E>(a.x, c, a.length, x);
  const int end = min(c.begin + kPartRows, a.length);
  for (int first = c.begin; first < end; first += kStep) {
    Fill<E>(a.x, next, x);
    if (first + kStep < end) LoadQuads<E>(a.x, c, first + kStep, a.length, next);
#pragma unroll
    for (int s = 0; s < kStep; ++s) {
      if (first + s >= end) break;
      float y[kOf];
#pragma unroll
      for (int i = 0; i < kOf; ++i)
        y[i] = SiluOf(Convolved(taps, x, bias, c.first_tap, s, i)).value;
      StoreQuad<E>(a.out, c, first + s, y);
    }
    x.Move();
  }
}

__device__ __forceinline__ float Softplus(float v) { return v > 20.0f ? v : log1pf(expf(v)); }

__global__ void __launch_bounds__(kThreads) StepsKernel(const ConvArgs a) {
  BeginKernel();
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (e >= int64_t{a.batch} * a.length * a.heads) return;
  const int64_t row = e / a.heads, h = e % a.heads, b = row / a.length, t = row % a.length;
  const float raw =
      ElementOf(a.dt_raw.rows, b * a.dt_raw.batch_stride + t * a.dt_raw.rows.stride + h);
  const float step = Softplus(__fadd_rn(raw, ElementOf(a.dt_bias, h)));
  a.dt[e] = fminf(fmaxf(step, a.dt_min), a.dt_max);
}

template <Elements E>
__global__ void __launch_bounds__(kThreads, 2) ConvGradKernel(const ConvArgs a, int64_t sums) {
  constexpr int kLane = (kTaps + 1) * kOf;           // d_weight by taps, d_bias
  __shared__ float parts[kParts][kLane][kWarp + 1];  // an odd stride: no two lanes on one bank
  BeginKernel();
  const Channels c(a);
  float d_taps[kTaps][kOf] = {}, d_bias[kOf] = {};
  if (c.inside) {
    Quads<E> next_x, next_d;
    LoadQuads<E>(a.x, c, c.begin, a.length, next_x);
    LoadQuads<E>(a.out, c, c.begin, a.length, next_d);
    float taps[kTaps][kOf], bias[kOf];
    LoadTaps(a, c, taps, bias);
    Window x, d_u{};
    FillBefore<E>(a.x, c, a.length, x);
    // What a position's input is to the three positions behind it is known with the last of them.
    const int end = min(c.begin + kPartRows, a.length);
    for (int first = c.begin; first < end + kBefore; first += kStep) {
      Fill<E>(a.x, next_x, x);
      Fill<E>(a.out, next_d, d_u);
      if (first + kStep < end + kBefore) {
        LoadQuads<E>(a.x, c, first + kStep, a.length, next_x);
        LoadQuads<E>(a.out, c, first + kStep, a.length, next_d);
      }
#pragma unroll
      for (int s = 0; s < kStep; ++s) {
        float(&d)[kOf] = d_u.v[kBefore + s];
        const bool own = first + s < end;
        if (first + s < a.length) {
#pragma unroll
          for (int i = 0; i < kOf; ++i)
            d[i] = __fmul_rn(d[i], SiluOf(Convolved(taps, x, bias, c.first_tap, s, i)).derivative);
        }
        if (own) {
#pragma unroll
          for (int i = 0; i < kOf; ++i) {
            d_bias[i] = __fadd_rn(d_bias[i], d[i]);
#pragma unroll
            for (int k = 0; k < kTaps; ++k)
              d_taps[k][i] = __fmaf_rn(d[i], x.v[s + k][i], d_taps[k][i]);
          }
        }
        const int done = first + s - kBefore;
        if (done < c.begin || done >= end) continue;
        float d_x[kOf] = {};
#pragma unroll
        for (int i = 0; i < kOf; ++i)
#pragma unroll
          for (int k = 0; k < kTaps; ++k)
            d_x[i] = __fmaf_rn(taps[k][i], d_u.v[s + kBefore - k][i], d_x[i]);
        StoreQuad<E>(a.d_x, c, done, d_x);
      }
      x.Move();
      d_u.Move();
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kOf; ++i) {
#pragma unroll
    for (int k = 0; k < kTaps; ++k) parts[c.part][k * kOf + i][lane] = d_taps[k][i];
    parts[c.part][kTaps * kOf + i][lane] = d_bias[i];
  }
  __syncthreads();
  float* const row = a.partials + (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * sums;
  for (int e = threadIdx.x; e < kLane * kWarp; e += kThreads) {
    const int value = e / kWarp, of_lane = e % kWarp, tap = value / kOf;
    const int channel = static_cast<int>(blockIdx.x * kWarp + of_lane) * kOf + value % kOf;
    if (channel >= a.channels || (tap < kTaps && tap < c.first_tap)) continue;
    float sum = 0;
    for (int part = 0; part < kParts; ++part) sum = __fadd_rn(sum, parts[part][value][of_lane]);
    row[int64_t{tap - c.first_tap} * a.channels + channel] = sum;
  }
}

// A warp has 32 positions of 32 heads.
__global__ void __launch_bounds__(kThreads) StepsGradKernel(const ConvArgs a, int64_t sums) {
  __shared__ float parts[kParts][kWarp];
  BeginKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            part = static_cast<int>(threadIdx.x) / kWarp;
  const int h = static_cast<int>(blockIdx.x * kWarp) + lane, b = blockIdx.z;
  const int begin = static_cast<int>(blockIdx.y * kMambaConvRows) + part * kPartRows;
  float sum = 0;
  if (h < a.heads)
    for (int t = begin; t < min(begin + kPartRows, a.length); ++t) {
      const float raw =
          ElementOf(a.dt_raw.rows, b * a.dt_raw.batch_stride + t * a.dt_raw.rows.stride + h);
      const float v = __fadd_rn(raw, ElementOf(a.dt_bias, h)), step = Softplus(v);
      const bool clamped = step < a.dt_min || step > a.dt_max;
      const float d_dt = a.dt[(int64_t{b} * a.length + t) * a.heads + h];
      const float d_raw = clamped ? 0.0f : __fmul_rn(d_dt, v > 20.0f ? 1.0f : Sigmoid(v));
      SetElement(a.d_dt_raw.rows, b * a.d_dt_raw.batch_stride + t * a.d_dt_raw.rows.stride + h,
                 d_raw, false);
      sum = __fadd_rn(sum, d_raw);
    }
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || h >= a.heads) return;
  sum = 0;
  for (int p = 0; p < kParts; ++p) sum = __fadd_rn(sum, parts[p][lane]);
  a.partials[(int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * sums + sums - a.heads + h] = sum;
}

// The partials of all row blocks, in order, to where they belong.
__global__ void __launch_bounds__(kThreads)
    ConvSumsKernel(const ConvArgs a, int64_t sums, int row_blocks) {
  BeginKernel();
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (e >= sums) return;
  double sum = 0;
#pragma unroll 8
  for (int row = 0; row < row_blocks; ++row)
    sum = __dadd_rn(sum, static_cast<double>(a.partials[row * sums + e]));
  const auto value = static_cast<float>(sum);
  const int64_t tap = e / a.channels, channel = e % a.channels;
  if (tap < a.width)
    SetElement(a.d_weight, channel * a.width + tap, value, a.add_weight);
  else if (tap == a.width)
    SetElement(a.d_bias, channel, value, a.add_bias);
  else
    SetElement(a.d_dt_bias, e - (sums - a.heads), value, a.add_dt_bias);
}

unsigned Blocks(int64_t n, int64_t per_block) {
  return static_cast<unsigned>(CeilDiv(n, per_block));
}

}  // namespace

void LaunchConv(const ConvArgs& a, const Launch& launch) {
  const int64_t steps = int64_t{a.batch} * a.length * a.heads;
  if (int64_t{a.batch} * a.length == 0) return;
  const dim3 grid(Blocks(a.channels, kWarp * kOf), Blocks(a.length, kMambaConvRows),
                  static_cast<unsigned>(a.batch));
  LaunchKernel(launch, grid, kThreads, 0,
               a.bf16 ? ConvKernel<Elements::kBF16> : ConvKernel<Elements::kAny>, a);
  LaunchKernel(launch, Blocks(steps, kThreads), kThreads, 0, StepsKernel, a);
}

void LaunchConvGrad(const ConvArgs& a, const Launch& launch) {
  const int64_t sums = int64_t{a.channels} * (a.width + 1) + a.heads;
  const unsigned row_blocks = Blocks(a.length, kMambaConvRows),
                 batch = static_cast<unsigned>(a.batch);
  if (int64_t{a.batch} * a.length > 0) {
    LaunchKernel(launch, dim3(Blocks(a.channels, kWarp * kOf), row_blocks, batch), kThreads, 0,
                 a.bf16 ? ConvGradKernel<Elements::kBF16> : ConvGradKernel<Elements::kAny>, a,
                 sums);
    LaunchKernel(launch, dim3(Blocks(a.heads, kWarp), row_blocks, batch), kThreads, 0,
                 StepsGradKernel, a, sums);
  }
  LaunchKernel(launch, Blocks(sums, kThreads), kThreads, 0, ConvSumsKernel, a, sums,
               static_cast<int>(row_blocks * batch));
}

}  // namespace millrace::cuda
