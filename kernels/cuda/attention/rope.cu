#include "kernels/cuda/attention/rope_launch.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Frequencies whose wavelength the original context does not cover are divided by `factor`, those
// well inside stay, and those between are blended (Llama 3.1; HF modeling_rope_utils).
__device__ double Scaled(double frequency, const RopeScaling& s) {
  if (s.factor == 1) return frequency;
  const double context = static_cast<double>(s.original_max_position_embeddings);
  const double wavelength = 2 * kPi / frequency;
  if (wavelength > context / s.low_freq_factor) return frequency / s.factor;
  if (wavelength < context / s.high_freq_factor) return frequency;
  const double blend =
      (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - blend) * frequency / s.factor + blend * frequency;
}

// table[t, i] = cos, sin of t * frequency(i); a block is one i, whose frequency is formed once.
__global__ void __launch_bounds__(kFlatThreads) RopeTableKernel(const RopeTableArgs a) {
  BeginKernel();
  __shared__ double frequency;
  const int64_t i = blockIdx.x;
  if (threadIdx.x == 0)
    frequency = Scaled(pow(a.attrs.theta, -static_cast<double>(i) / static_cast<double>(a.half)),
                       a.attrs.scaling);
  __syncthreads();
  for (int64_t t = threadIdx.x; t < a.length; t += blockDim.x) {
    double sine, cosine;
    const int64_t position = t < a.chunk ? a.start[0] + t : a.start[1] + t - a.chunk;
    sincos(static_cast<double>(position) * frequency, &sine, &cosine);
    float* const entry = a.table + (t * a.half + i) * 2;
    entry[0] = static_cast<float>(cosine);
    entry[1] = static_cast<float>(sine);
  }
}

// (low, high) -> (low cos - high sin, high cos + low sin), eight pairs per thread.
template <Elements E>
__global__ void __launch_bounds__(kFlatThreads) RopeKernel(const RopeArgs a) {
  BeginKernel();
  if (a.packs == a.per_position.divisor) LetNextBegin();  // of one row
  const uint32_t pack = blockIdx.x * kFlatThreads + threadIdx.x;
  if (pack >= a.packs) return;
  const uint32_t row = a.per_position.Quotient(pack);  // b*T + t
  const uint32_t in_row = pack - row * a.per_position.divisor;
  const uint32_t b = a.length.Quotient(row), t = row - b * a.length.divisor;
  const uint32_t head = a.per_head.Quotient(in_row);
  const int i = static_cast<int>(in_row - head * a.per_head.divisor) * kPack, left = a.half - i;
  const int64_t at = b * a.batch_stride + t * a.position_stride + head * a.head_stride + i;

  const Raw<E> low_raw = LoadRaw<E>(a.x, at, left), high_raw = LoadRaw<E>(a.x, at + a.half, left);
  float angle[2 * kPack];  // cos, sin
  int64_t position = a.documents == nullptr ? t : int64_t{t} - a.documents[row];
  if (a.at != nullptr) position = a.at[row];
  const float* entry = a.table + (position * a.half + i) * 2;
  if (a.x.wide) {
#pragma unroll
    for (int j = 0; j < 2 * kPack; j += 4) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(entry + j));
      angle[j] = v.x, angle[j + 1] = v.y, angle[j + 2] = v.z, angle[j + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < 2 * kPack; ++j) angle[j] = j / 2 < left ? __ldg(entry + j) : 0.0f;
  }
  const Floats low = ToFloats<E>(a.x, low_raw), high = ToFloats<E>(a.x, high_raw);
  Floats new_low, new_high;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const float cosine = angle[2 * j], sine = a.sign * angle[2 * j + 1];
    new_low.v[j] = __fsub_rn(__fmul_rn(low.v[j], cosine), __fmul_rn(high.v[j], sine));
    new_high.v[j] = __fadd_rn(__fmul_rn(high.v[j], cosine), __fmul_rn(low.v[j], sine));
  }
  Store<E>(a.x, at, left, new_low);
  Store<E>(a.x, at + a.half, left, new_high);
}

}  // namespace

void LaunchRopeTable(const RopeTableArgs& args, const Launch& launch) {
  if (args.length == 0 || args.half == 0) return;
  LaunchKernel(launch, static_cast<unsigned>(args.half), kFlatThreads, 0, RopeTableKernel, args);
}

void LaunchRope(const RopeArgs& args, const Launch& launch) {
  const auto blocks = static_cast<unsigned>(CeilDiv(args.packs, kFlatThreads));
  WithElementsOf(args.x, [&]<Elements E>() {
    LaunchKernel(launch, blocks, kFlatThreads, 0, RopeKernel<E>, args);
  });
}

}  // namespace millrace::cuda
