#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/gated.cuh"
#include "kernels/cuda/mamba/mamba_launch.h"
#include "kernels/ops/cuda_ssd.h"

// A block takes 128 positions of one sequence and 256 channels: a warp has 16 of the positions, a
// thread eight channels of them, position after position, with the last inputs in registers.
namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kParts = 8, kTaps = 4;
constexpr int kPartRows = static_cast<int>(kMambaConvRows) / kParts;

struct Window {
  float v[kTaps][kPack];  // the oldest first

  __device__ void Push(const Floats& next) {
#pragma unroll
    for (int k = 0; k + 1 < kTaps; ++k)
#pragma unroll
      for (int i = 0; i < kPack; ++i) v[k][i] = v[k + 1][i];
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[kTaps - 1][i] = next.v[i];
  }
};

// Where a thread works; taps that a narrower convolution lacks stay out of its sums.
struct Channels {
  int batch, channel, count, begin, part, first_tap;
  bool inside;

  __device__ explicit Channels(const ConvArgs& a)
      : batch(blockIdx.z),
        channel(static_cast<int>(blockIdx.x * kWarp + threadIdx.x % kWarp) * kPack),
        part(static_cast<int>(threadIdx.x) / kWarp),
        first_tap(kTaps - a.width) {
    count = a.channels - channel;
    begin = static_cast<int>(blockIdx.y * kMambaConvRows) + part * kPartRows;
    inside = count > 0 && begin < a.length;
  }
};

template <Elements E>
__device__ __forceinline__ Floats RowOf(const Sequence& s, const Channels& c, int t, int length) {
  if (t < 0 || t >= length) return Floats{};
  return Load<E>(s.rows, c.batch * s.batch_stride + t * s.rows.stride + c.channel, c.count);
}

__device__ __forceinline__ void LoadTaps(const ConvArgs& a, const Channels& c,
                                         float (&taps)[kTaps][kPack], float (&bias)[kPack]) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const bool there = i < c.count;
    bias[i] = there ? ElementOf(a.bias, c.channel + i) : 0.0f;
#pragma unroll
    for (int k = 0; k < kTaps; ++k)
      taps[k][i] = there && k >= c.first_tap
                       ? ElementOf(a.weight, int64_t{c.channel + i} * a.width + k - c.first_tap)
                       : 0.0f;
  }
}

__device__ __forceinline__ float Convolved(const float (&taps)[kTaps][kPack], const Window& x,
                                           const float (&bias)[kPack], int first_tap, int i) {
  float u = bias[i];
#pragma unroll
  for (int k = 0; k < kTaps; ++k)
    if (k >= first_tap) u = __fmaf_rn(taps[k][i], x.v[k][i], u);
  return u;
}

template <Elements E>
__global__ void __launch_bounds__(kThreads) ConvKernel(const ConvArgs a) {
  BeginKernel();
  const Channels c(a);
  if (!c.inside) return;
  float taps[kTaps][kPack], bias[kPack];
  LoadTaps(a, c, taps, bias);
  Window x{};
  for (int t = c.begin - (kTaps - 1); t < c.begin; ++t) x.Push(RowOf<E>(a.x, c, t, a.length));
  for (int t = c.begin; t < min(c.begin + kPartRows, a.length); ++t) {
    x.Push(RowOf<E>(a.x, c, t, a.length));
    Floats y;
#pragma unroll
    for (int i = 0; i < kPack; ++i) y.v[i] = SiluOf(Convolved(taps, x, bias, c.first_tap, i)).value;
    Store<E>(a.out.rows, c.batch * a.out.batch_stride + t * a.out.rows.stride + c.channel, c.count,
             y);
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
__global__ void __launch_bounds__(kThreads) ConvGradKernel(const ConvArgs a, int64_t sums) {
  constexpr int kLane = (kTaps + 1) * kPack;         // d_weight by taps, d_bias
  __shared__ float parts[kParts][kLane][kWarp + 1];  // an odd stride: no two lanes on one bank
  BeginKernel();
  const Channels c(a);
  float d_taps[kTaps][kPack] = {}, d_bias[kPack] = {};
  if (c.inside) {
    float taps[kTaps][kPack], bias[kPack];
    LoadTaps(a, c, taps, bias);
    Window x{}, d_u{};
    for (int t = c.begin - (kTaps - 1); t < c.begin; ++t) x.Push(RowOf<E>(a.x, c, t, a.length));
    const int end = min(c.begin + kPartRows, a.length);
    for (int t = c.begin; t < end + kTaps - 1; ++t) {
      x.Push(RowOf<E>(a.x, c, t, a.length));
      Floats d = RowOf<E>(a.out, c, t, a.length);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        d.v[i] = __fmul_rn(d.v[i], SiluOf(Convolved(taps, x, bias, c.first_tap, i)).derivative);
        if (t >= end) continue;
        d_bias[i] = __fadd_rn(d_bias[i], d.v[i]);
#pragma unroll
        for (int k = 0; k < kTaps; ++k) d_taps[k][i] = __fmaf_rn(d.v[i], x.v[k][i], d_taps[k][i]);
      }
      d_u.Push(d);
      const int done = t - (kTaps - 1);
      if (done < c.begin) continue;
      Floats d_x;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) sum = __fmaf_rn(taps[k][i], d_u.v[kTaps - 1 - k][i], sum);
        d_x.v[i] = sum;
      }
      Store<E>(a.d_x.rows, c.batch * a.d_x.batch_stride + done * a.d_x.rows.stride + c.channel,
               c.count, d_x);
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
#pragma unroll
    for (int k = 0; k < kTaps; ++k) parts[c.part][k * kPack + i][lane] = d_taps[k][i];
    parts[c.part][kTaps * kPack + i][lane] = d_bias[i];
  }
  __syncthreads();
  float* const row = a.partials + (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * sums;
  for (int e = threadIdx.x; e < kLane * kWarp; e += kThreads) {
    const int value = e / kWarp, of_lane = e % kWarp, tap = value / kPack;
    const int channel = static_cast<int>(blockIdx.x * kWarp + of_lane) * kPack + value % kPack;
    if (channel >= a.channels || (tap < kTaps && tap < c.first_tap)) continue;
    float sum = 0;
    for (int part = 0; part < kParts; ++part) sum = __fadd_rn(sum, parts[part][value][of_lane]);
    row[int64_t{tap - c.first_tap} * a.channels + channel] = sum;
  }
}

// A warp has 16 positions of 32 heads.
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
  const dim3 grid(Blocks(a.channels, kWarp * kPack), Blocks(a.length, kMambaConvRows),
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
    LaunchKernel(launch, dim3(Blocks(a.channels, kWarp * kPack), row_blocks, batch), kThreads, 0,
                 a.bf16 ? ConvGradKernel<Elements::kBF16> : ConvGradKernel<Elements::kAny>, a,
                 sums);
    LaunchKernel(launch, dim3(Blocks(a.heads, kWarp), row_blocks, batch), kThreads, 0,
                 StepsGradKernel, a, sums);
  }
  LaunchKernel(launch, Blocks(sums, kThreads), kThreads, 0, ConvSumsKernel, a, sums,
               static_cast<int>(row_blocks * batch));
}

}  // namespace millrace::cuda
