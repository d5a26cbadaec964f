#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

// The scan on tensor cores: decays and steps laid out by head; the state before each chunk; the
// outputs. kernels/cpu/ssd_chunk.h has the letters.
namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

// A warp's four heads of a chunk; a lane has four positions.
constexpr int kHeads = 32;
__global__ void __launch_bounds__(kThreads) StepsKernel(const SsdArgs a) {
  __shared__ float steps[kQ][kHeads + 1];
  BeginKernel();
  const int first = static_cast<int>(blockIdx.y) * kHeads, count = min(kHeads, a.heads - first);
  SsdPlace p{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x), first};
  for (int e = threadIdx.x; e < kQ * kHeads; e += kThreads) {
    const int i = e / kHeads, h = e % kHeads;
    steps[i][h] = i < p.count(a) && h < count ? a.dt[p.step(a, i) + h] : 0.0f;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int h = static_cast<int>(threadIdx.x) / kWarp; h < count; h += kThreads / kWarp) {
    p.head = first + h;
    const double rate = static_cast<double>(DecayRate(a, p.head));
    double sums[4], sum = 0;
    for (int i = 0; i < 4; ++i)
      sums[i] = sum = __fma_rn(static_cast<double>(steps[4 * lane + i][h]), rate, sum);
    double before = sum;  // of the lanes up to this one
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double other = __shfl_up_sync(0xffffffffu, before, distance);
      if (lane >= distance) before = __dadd_rn(before, other);
    }
    before = __dsub_rn(before, sum);
    for (int i = 0; i < 4; ++i) {
      const int64_t to = p.position(a) + 4 * lane + i;
      constexpr double kLog2E = 1.4426950408889634;
      static_cast<float*>(a.decay)[to] = static_cast<float>(kLog2E * __dadd_rn(before, sums[i]));
      a.steps_or_pairs[to] = steps[4 * lane + i][h];
    }
  }
}

// Half the states of one head of one sequence, chunk after chunk in registers: [P, N/2], a warp has
// 16 of the channels. kGradient: of d_out and c, backwards; else of dt*x and b.
constexpr int kStateThreads = 128, kHalf = kN / 2;
struct StateBuffers {
  uint16_t left[2][kQ * kP], right[2][kQ * kHalf];
  float weights[2][kQ], whole[2];
};

template <bool kGradient>
__device__ __forceinline__ void FillChunk(StateBuffers& s, int buffer, const SsdArgs& a,
                                          const SsdPlace& p) {
  const Sequence &left = kGradient ? a.out : a.x, right = kGradient ? a.c : a.b;
  FillRows<kP, kStateThreads>(Tile<kP>{s.left[buffer]}, left, a, p, p.head);
  FillTile<kQ, kHalf, kStateThreads>(
      Tile<kHalf>{s.right[buffer]},
      right.rows.data +
          2 * (RowAt(right, p.batch, p.begin(a), p.group(a)) + int64_t{blockIdx.x} * kHalf),
      right.rows.stride, p.count(a), right.rows.wide);
  const float* const decay = static_cast<const float*>(a.decay) + p.position(a);
  const int i = threadIdx.x;
  const float last = decay[kQ - 1];
  s.weights[buffer][i] =
      kGradient ? exp2f(decay[i])
                : __fmul_rn(exp2f(last - decay[i]), a.steps_or_pairs[p.position(a) + i]);
  if (i == 0) s.whole[buffer] = exp2f(last);
}

// Rows of a, scaled: columns k0 .. of the weights.
__device__ __forceinline__ void ScaleColumns(uint32_t (&a)[4], const float* weights) {
  const int q = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float* const w = weights + q + r / 2 * 8;
    a[r] = PairOfBF16(__fmul_rn(__uint_as_float(a[r] << 16), w[0]),
                      __fmul_rn(__uint_as_float(a[r] & 0xffff0000u), w[1]));
  }
}

template <bool kGradient>
__global__ void __launch_bounds__(kStateThreads) StatesKernel(const SsdArgs a) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  BeginKernel();
  StateBuffers& s = *reinterpret_cast<StateBuffers*>(shared_memory);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            channel = static_cast<int>(threadIdx.x) / kWarp * 16;
  const auto place = [&](int step) {
    return SsdPlace{static_cast<int>(blockIdx.z), kGradient ? a.chunks - 1 - step : step,
                    static_cast<int>(blockIdx.y)};
  };
  std::byte* const states = static_cast<std::byte*>(kGradient ? a.states_behind : a.states_before);
  float state[kHalf / 8][4] = {};
  // Of the last chunk nobody reads what it adds.
  if (a.chunks > 1) FillChunk<kGradient>(s, 0, a, place(0));
  CommitCopies();
  for (int step = 0; step < a.chunks; ++step) {
    const int buffer = step % 2;
    std::byte* const to = states + 2 * (place(step).state(a) + (channel + lane / 4) * kN +
                                        int64_t{blockIdx.x} * kHalf + lane % 4 * 2);
#pragma unroll
    for (int t = 0; t < kHalf / 8; ++t) {
      StorePair(to + 16 * t, true, state[t][0], state[t][1]);
      StorePair(to + 16 * t + 2 * 8 * kN, true, state[t][2], state[t][3]);
    }
    if (step + 1 == a.chunks) break;
    if (step + 2 < a.chunks) FillChunk<kGradient>(s, 1 - buffer, a, place(step + 1));
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    const Tile<kP> left{s.left[buffer]};
    const Tile<kHalf> right{s.right[buffer]};
#pragma unroll
    for (int t = 0; t < kHalf / 8; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[t][e] = __fmul_rn(state[t][e], s.whole[buffer]);
#pragma unroll
    for (int k = 0; k < kQ; k += 16) {
      uint32_t x[4];
      left.LoadATransposed(x, channel, k);
      ScaleColumns(x, s.weights[buffer] + k);
#pragma unroll
      for (int t = 0; t < kHalf / 8; t += 2) {
        uint32_t b[4];
        right.LoadBTransposed(b, k, 8 * t);
        Mma(state[t], x, b[0], b[1]);
        Mma(state[t + 1], x, b[2], b[3]);
      }
    }
    __syncthreads();  // the buffer is filled again
  }
}

// A chunk of a group, head by head; a warp has 16 positions i. c.b stays in registers.
struct OutBuffers {
  uint16_t c[kQ * kN], b[kQ * kN];
  uint16_t x[2][kQ * kP], state[2][kP * kN];
  Steps steps[2];
};

__device__ __forceinline__ void FillHead(OutBuffers& s, int buffer, const SsdArgs& a,
                                         const SsdPlace& p) {
  FillRows<kP, kThreads>(Tile<kP>{s.x[buffer]}, a.x, a, p, p.head);
  FillState<kThreads>(Tile<kN>{s.state[buffer]}, a.states_before, a, p);
  FillSteps<kThreads>(s.steps[buffer], a, p);
}

// y += what the chunk's own positions give: the pairs, decayed, times x; and d x.
__device__ __forceinline__ void AddPairs(float (&y)[kP / 8][4], const float (&pairs)[kQ / 8][4],
                                         const Tile<kP>& x, const Steps& steps, int row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < kQ; k += 16) {
    if (k > row) break;
    float decayed[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = row + lane / 4 + e / 2 * 8, j = k + 8 * t + lane % 4 * 2 + e % 2;
        const float factor = __fmul_rn(steps.Between(i, j), steps.dt[j]);
        decayed[t][e] = j > i ? 0.0f : __fmul_rn(pairs[k / 8 + t][e], factor);
      }
    uint32_t m[4];
    FragmentOf(m, decayed[0], decayed[1]);
#pragma unroll
    for (int t = 0; t < kP / 8; t += 2) {
      uint32_t b[4];
      x.LoadBTransposed(b, k, 8 * t);
      Mma(y[t], m, b[0], b[1]);
      Mma(y[t + 1], m, b[2], b[3]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) OutKernel(const SsdArgs a) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  BeginKernel();
  OutBuffers& s = *reinterpret_cast<OutBuffers*>(shared_memory);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            row = static_cast<int>(threadIdx.x) / kWarp * 16;
  SsdPlace p{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
             static_cast<int>(blockIdx.y) * a.heads_of_group};
  const Tile<kN> c{s.c}, b{s.b};
  FillRows<kN, kThreads>(c, a.c, a, p, p.group(a));
  FillRows<kN, kThreads>(b, a.b, a, p, p.group(a));
  FillHead(s, 0, a, p);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  float pairs[kQ / 8][4] = {};
  PairsOfRows(pairs, c, b, row, 0, row + 16);
  for (int h = 0; h < a.heads_of_group; ++h) {
    const int buffer = h % 2;
    const SsdPlace here{p.batch, p.chunk, p.head + h};
    if (h + 1 < a.heads_of_group) FillHead(s, 1 - buffer, a, {p.batch, p.chunk, p.head + h + 1});
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    const Steps& steps = s.steps[buffer];
    const Tile<kP> x{s.x[buffer]};
    float y[kP / 8][4] = {};
    ProductOfRows(y, c, Tile<kN>{s.state[buffer]}, row);
    const float low = steps.FromStart(row + lane / 4), high = steps.FromStart(row + lane / 4 + 8);
#pragma unroll
    for (int t = 0; t < kP / 8; ++t) {
      y[t][0] = __fmul_rn(y[t][0], low), y[t][1] = __fmul_rn(y[t][1], low);
      y[t][2] = __fmul_rn(y[t][2], high), y[t][3] = __fmul_rn(y[t][3], high);
    }
    AddPairs(y, pairs, x, steps, row);
    const float d = ElementOf(a.d, here.head);
#pragma unroll
    for (int t = 0; t < kP / 8; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 own = x.PairAt(row + lane / 4 + 8 * half, 8 * t + lane % 4 * 2);
        y[t][2 * half] = __fmaf_rn(d, own.x, y[t][2 * half]);
        y[t][2 * half + 1] = __fmaf_rn(d, own.y, y[t][2 * half + 1]);
      }
    StoreRows(a.out, a, here, here.head, row, y);
    __syncthreads();  // the buffer is filled again
  }
}

}  // namespace

void LaunchSsdSteps(const SsdArgs& a, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(CeilDiv(a.heads, kHeads)),
                  static_cast<unsigned>(a.batch));
  LaunchKernel(launch, grid, kThreads, 0, StepsKernel, a);
}

template <bool kGradient>
void LaunchSsdStates(const SsdArgs& a, const Launch& launch) {
  const dim3 grid(2, static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
  AllowShared(StatesKernel<kGradient>, sizeof(StateBuffers));
  LaunchKernel(launch, grid, kStateThreads, sizeof(StateBuffers), StatesKernel<kGradient>, a);
}
template void LaunchSsdStates<false>(const SsdArgs&, const Launch&);
template void LaunchSsdStates<true>(const SsdArgs&, const Launch&);

void LaunchSsdCores(const SsdArgs& a, const Launch& launch) {
  LaunchSsdSteps(a, launch);
  LaunchSsdStates<false>(a, launch);
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(a.groups),
                  static_cast<unsigned>(a.batch));
  AllowShared(OutKernel, sizeof(OutBuffers));
  LaunchKernel(launch, grid, kThreads, sizeof(OutBuffers), OutKernel, a);
}

}  // namespace millrace::cuda
