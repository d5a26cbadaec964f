#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_pairs.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "runtime/base/cuda/launch.cuh"

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

// A chunk of a group, head by head. c.b of a warp's blocks of pairs stays in registers.
struct OutBuffers {
  uint16_t c[kQ * kN];
  struct Head {
    uint16_t x[kQ * kP], state[kP * kN];
  } heads[kStages];  // ahead of the third head, its buffer has b
  Steps steps[kStages];
  uint4 m[2][kBlocks][kWarp];  // a head's pairs, decayed, as fragments; of two heads
  FirstHead first;
  Stages<kPairThreads> stages;
  uint64_t m_there;
};
static_assert(sizeof(OutBuffers::Head) == sizeof(uint16_t[kQ * kN]));

// Begins to fill the buffers of head h of a group.
__device__ __forceinline__ void FillHead(OutBuffers& s, const SsdArgs& a, int h) {
  OutBuffers::Head& head = s.heads[h % kStages];
  RowsOfChunk(s.first.x, a.x, s.first.count, h).Fill<kPairThreads>(Tile<kP>{head.x});
  FillState<kPairThreads>(Tile<kN>{head.state}, s.first.Before(h));
  FillSteps(s.steps[h % kStages], s.first, a, h);
  s.stages.Filled(h, a.x.rows.wide);
}

// A warp's blocks of a head: the pairs, decayed, times dt.
__device__ __forceinline__ void DecayPairs(OutBuffers& s, int h, const PairSlots<false>& slots,
                                           const float (&pairs)[kSlots][2][4]) {
  const Lane l(0);
  const Steps& steps = s.steps[h % kStages];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!slots.Has(slot)) break;
    const Block<false> block = slots.blocks[slot];
    float w[2][4];
    DecaysOf(w, steps, block);
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float dt = steps.dt[16 * block.j + 8 * t + l.column + e % 2];
        w[t][e] = __fmul_rn(pairs[slot][t][e], __fmul_rn(w[t][e], dt));
      }
    uint32_t m[4];
    FragmentOf(m, w[0], w[1]);
    s.m[h % 2][block.index()][l.lane] = make_uint4(m[0], m[1], m[2], m[3]);
  }
  Arrive(SharedAddress(&s.m_there));
}

// A warp's rows of the outputs of head h of a group.
__device__ __forceinline__ void OutOfHead(const SsdArgs& a, int head0, OutBuffers& s, int h) {
  const Rows16 rows;
  const Lane l(rows.row);
  OutBuffers::Head& head = s.heads[h % kStages];
  const Steps& steps = s.steps[h % kStages];
  const Tile<kP> x{head.x};
  float y[kHalfTiles][4] = {};
  AddProduct(y, Tile<kN>{s.c}, Tile<kN>{head.state}, rows);
  ScaleRows(y, steps.FromStart(l.row), steps.FromStart(l.row + 8));
  // Once all warps have this head's pairs they are done with the head before, and with b.
  WaitFor(SharedAddress(&s.m_there), h % 2);
  if (h + kStages - 1 < a.heads_of_group) FillHead(s, a, h + kStages - 1);
  const uint4* m = &s.m[h % 2][Block<false>{rows.tile, 0}.index()][l.lane];
#pragma unroll 1
  for (int j = 0; j <= rows.row; j += 16, m += kWarp) AddBlock(y, *m, x, j, rows.channel);
  const OwnPairs pairs(x, rows);
  const float d = ElementOf(a.d, head0 + h);
#pragma unroll
  for (int t = 0; t < kHalfTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 own = pairs.At(t, half);
      y[t][2 * half] = __fmaf_rn(d, own.x, y[t][2 * half]);
      y[t][2 * half + 1] = __fmaf_rn(d, own.y, y[t][2 * half + 1]);
    }
  StoreRows(RowsOfChunk(s.first.out, a.out, s.first.count, h), rows.row, rows.channel, y);
}

__global__ void __launch_bounds__(kPairThreads, 1) OutKernel(const SsdArgs a) {
  extern __shared__ __align__(256) unsigned char shared_memory[];
  BeginKernel();
  OutBuffers& s = *reinterpret_cast<OutBuffers*>(shared_memory);
  const SsdPlace group{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
                       static_cast<int>(blockIdx.y) * a.heads_of_group};
  if (threadIdx.x == 0) {
    s.first.Init(a, group);
    s.stages.Init();
    InitBarrier(SharedAddress(&s.m_there), kPairThreads);
  }
  __syncthreads();
  const Tile<kN> c{s.c}, b{s.heads[kStages - 1].x};
  RowsOfChunk(a.c, a, group, group.group(a)).Fill<kPairThreads>(c);
  RowsOfChunk(a.b, a, group, group.group(a)).Fill<kPairThreads>(b);
  CommitCopies();
  for (int h = 0; h < min(kStages - 1, a.heads_of_group); ++h) FillHead(s, a, h);
  CommitCopies();
  WaitCopies<1>();
  __syncthreads();
  const PairSlots<false> slots;
  float pairs[kSlots][2][4] = {};
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    if (slots.Has(slot))
      ProductsOfBlock(pairs[slot], c, b, 16 * slots.blocks[slot].i, 16 * slots.blocks[slot].j);
#pragma unroll 1
  for (int turn = 0; turn < a.heads_of_group; ++turn) {
    const int h = Anew(turn);
    OutBuffers& here = *reinterpret_cast<OutBuffers*>(shared_memory + Anew(0));
    here.stages.Wait(h);
    DecayPairs(here, h, slots, pairs);
    OutOfHead(a, group.head, here, h);
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
  LaunchKernel(launch, grid, kPairThreads, sizeof(OutBuffers), OutKernel, a);
}

}  // namespace millrace::cuda
