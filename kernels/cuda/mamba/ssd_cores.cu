#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

// The scan on tensor cores: decays and steps laid out by head; the outputs, once the state before
// each chunk is there (ssd_states_cores.cu). kernels/cpu/mamba/ssd_chunk.h has the letters.
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

void LaunchSsdCores(const SsdArgs& a, const Launch& launch) {
  LaunchSsdSteps(a, launch);
  LaunchSsdStates<false>(a, launch);
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(a.groups),
                  static_cast<unsigned>(a.batch));
  AllowShared(OutKernel, sizeof(OutBuffers));
  LaunchKernel(launch, grid, kThreads, sizeof(OutBuffers), OutKernel, a);
}

}  // namespace millrace::cuda
