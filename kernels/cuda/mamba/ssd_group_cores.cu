#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"
#include "runtime/base/cuda/launch.cuh"

// The gradients of b and c, and of the steps, behind ssd_grad_cores.cu.
namespace millrace::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;

// A warp has 16 positions, and of them d_c or d_b over all states in registers.
struct GroupBuffers {
  uint16_t b[kQ * kN], c[kQ * kN];
  struct Head {
    uint16_t x[kQ * kP], d_out[kQ * kP], state[kP * kN], d_state[kP * kN];
  } heads[2];  // behind the last head, d_pairs lies over x and d_out of the other buffer
  Steps steps[2];
  FirstHead first;
  float products[2][kWarps], wholes[2];
};
static_assert(kWarps == 2 * kQ / 16 && sizeof(uint16_t[kQ * kQ]) == 2 * sizeof(uint16_t[kQ * kP]));

__device__ __forceinline__ void FillHead(GroupBuffers& s, const SsdArgs& a, int h) {
  GroupBuffers::Head& head = s.heads[h % 2];
  RowsOfChunk(s.first.x, a.x, s.first.count, h).Fill<kThreads>(Tile<kP>{head.x});
  RowsOfChunk(s.first.out, a.out, s.first.count, h).Fill<kThreads>(Tile<kP>{head.d_out});
  FillState<kThreads>(Tile<kN>{head.state}, s.first.Before(h));
  FillState<kThreads>(Tile<kN>{head.d_state}, s.first.Behind(h));
  FillSteps(s.steps[h % 2], s.first, a, h);
}

// Blocks of d_pairs with i >= j: its rows are j.
__device__ __forceinline__ void FillPairs(const Tile<kQ>& tile, const SsdArgs& a,
                                          const SsdPlace& p) {
  const uint16_t* const from = static_cast<const uint16_t*>(a.d_pairs) + p.pairs_of_group(a);
  for (int e = threadIdx.x; e < kQ * kQ / 8; e += kThreads) {
    const int j = e / (kQ / 8), i = e % (kQ / 8) * 8;
    if (i / 16 >= j / 16) CopyAsync16(tile.At(j, i), from + j * kQ + i);
  }
}

// sums[row, :] += factor(row) * left[row, :] . state[:, n], and for each of a lane's two rows the
// sum over n of what was added times with[row, n].
__device__ __forceinline__ float2 AddStates(float (&sums)[kN / 8][4], const Tile<kP>& left,
                                            const Tile<kN>& state, const Tile<kN>& with, int row,
                                            float low, float high) {
  uint32_t rows[kP / 16][4];
#pragma unroll
  for (int k = 0; k < kP / 16; ++k) left.LoadA(rows[k], row, 0, 0, 16 * k);
  float dots[2] = {};
#pragma unroll
  for (int n = 0; n < kN; n += 16) {
    float added[2][4] = {};
#pragma unroll
    for (int k = 0; k < kP / 16; ++k) {
      uint32_t b[4];
      state.LoadBTransposed(b, 0, 16 * k, 0, n);
      Mma(added[0], rows[k], b[0], b[1]);
      Mma(added[1], rows[k], b[2], b[3]);
    }
    uint32_t of_with[4];
    with.LoadA(of_with, row, 0, 0, n);
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = half == 0 ? low : high;
        const float x = added[t][2 * half], y = added[t][2 * half + 1];
        const float2 pair = OfFragment(of_with, t, 2 * half);
        float(&to)[4] = sums[n / 8 + t];
        to[2 * half] = __fmaf_rn(factor, x, to[2 * half]);
        to[2 * half + 1] = __fmaf_rn(factor, y, to[2 * half + 1]);
        dots[half] = __fmaf_rn(x, pair.x, dots[half]);
        dots[half] = __fmaf_rn(y, pair.y, dots[half]);
      }
  }
  return {__fmul_rn(low, QuadSum(dots[0])), __fmul_rn(high, QuadSum(dots[1]))};
}

// sums[row, :] += (factor(row) * left[row, :]) . state[:, n]; what is in brackets is rounded.
__device__ __forceinline__ void AddStates(float (&sums)[kN / 8][4], const Tile<kP>& left,
                                          const Tile<kN>& state, int row, float low, float high) {
#pragma unroll
  for (int k = 0; k < kP; k += 16) {
    uint32_t rows[4];
    left.LoadA(rows, row, 0, 0, k);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float factor = r % 2 == 0 ? low : high;
      rows[r] = PairOfBF16(__fmul_rn(factor, __uint_as_float(rows[r] << 16)),
                           __fmul_rn(factor, __uint_as_float(rows[r] & 0xffff0000u)));
    }
#pragma unroll
    for (int n = 0; n < kN; n += 16) {
      uint32_t b[4];
      state.LoadBTransposed(b, 0, k, 0, n);
      Mma(sums[n / 8], rows, b[0], b[1]);
      Mma(sums[n / 8 + 1], rows, b[2], b[3]);
    }
  }
}

// The product of a head's state and its gradient, element by element, of a thread's elements.
__device__ __forceinline__ float StateProduct(const GroupBuffers::Head& head) {
  float sum = 0;
#pragma unroll
  for (int e = 8 * static_cast<int>(threadIdx.x); e < kP * kN; e += 8 * kThreads) {
    const uint4 x = *reinterpret_cast<const uint4*>(head.state + e),
                y = *reinterpret_cast<const uint4*>(head.d_state + e);
    const uint32_t of_x[4] = {x.x, x.y, x.z, x.w}, of_y[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum = __fmaf_rn(__uint_as_float(of_x[k] << 16), __uint_as_float(of_y[k] << 16), sum);
      sum = __fmaf_rn(__uint_as_float(of_x[k] & 0xffff0000u),
                      __uint_as_float(of_y[k] & 0xffff0000u), sum);
    }
  }
  return sum;
}

// sums += left . right[k.., :], of 16 of the chunk's positions k.
__device__ __forceinline__ void AddPairs(float (&sums)[kN / 8][4], const uint32_t (&left)[4],
                                         const Tile<kN>& right, int k) {
#pragma unroll
  for (int t = 0; t < kN / 8; t += 2) {
    uint32_t r[4];
    right.LoadBTransposed(r, k, 0, 0, 8 * t);
    Mma(sums[t], left, r[0], r[1]);
    Mma(sums[t + 1], left, r[2], r[3]);
  }
}

// Which positions a warp has, and whether of d_c.
struct Share {
  int lane, warp, row, own;
  bool of_c;
  __device__ explicit Share(int thread)
      : lane(thread % kWarp),
        warp(thread / kWarp),
        row(warp % (kWarps / 2) * 16),
        own(row + lane / 4),
        of_c(warp < kWarps / 2) {}
};

__global__ void __launch_bounds__(kThreads, 1) GroupKernel(const SsdArgs a) {
  extern __shared__ __align__(256) unsigned char shared_memory[];
  BeginKernel();
  GroupBuffers& s = *reinterpret_cast<GroupBuffers*>(shared_memory);
  const SsdPlace p{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
                   static_cast<int>(blockIdx.y) * a.heads_of_group};
  const Tile<kN> b{s.b}, c{s.c};
  if (threadIdx.x == 0) s.first.Init(a, p);
  __syncthreads();
  RowsOfChunk(a.b, a, p, p.group(a)).Fill<kThreads>(b);
  RowsOfChunk(a.c, a, p, p.group(a)).Fill<kThreads>(c);
  FillHead(s, a, 0);
  CommitCopies();
  // What a head's warps have found, once all have.
  const auto finish = [](const GroupBuffers& s, int h) {
    if (threadIdx.x > 0) return;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum = __fadd_rn(sum, s.products[h % 2][w]);
    s.first.state_span[h] = __fmul_rn(s.wholes[h % 2], sum);
  };
  float sums[kN / 8][4] = {};
#pragma unroll 1
  for (int turn = 0; turn < a.heads_of_group; ++turn) {
    GroupBuffers& s = *reinterpret_cast<GroupBuffers*>(shared_memory + Anew(0));
    const int h = Anew(turn);
    const Share share(Anew(static_cast<int>(threadIdx.x)));
    const int row = share.row, own = share.own;
    WaitCopies<0>();
    __syncthreads();  // the head is there, and the one before it has been read
    if (h + 1 < a.heads_of_group)
      FillHead(s, a, h + 1);
    else
      FillPairs(Tile<kQ>{s.heads[1 - h % 2].x}, a, p);
    CommitCopies();
    if (h > 0) finish(s, h - 1);
    GroupBuffers::Head& head = s.heads[h % 2];
    const Steps& steps = s.steps[h % 2];
    if (share.of_c) {
      const float2 from_state =
          AddStates(sums, Tile<kP>{head.d_out}, Tile<kN>{head.state}, Tile<kN>{s.c}, row,
                    steps.FromStart(own), steps.FromStart(own + 8));
      if (share.lane % 4 == 0) {
        float* const spans = s.first.Spans(a, h);
        spans[4 * own] = from_state.x;
        spans[4 * (own + 8)] = from_state.y;
      }
    } else {
      AddStates(sums, Tile<kP>{head.x}, Tile<kN>{head.d_state}, row,
                __fmul_rn(steps.ToEnd(own), steps.dt[own]),
                __fmul_rn(steps.ToEnd(own + 8), steps.dt[own + 8]));
    }
    const float product = WarpSum(StateProduct(head));
    if (share.lane == 0) s.products[h % 2][share.warp] = product;
    if (threadIdx.x == 0) s.wholes[h % 2] = steps.FromStart(kQ - 1);
  }
  WaitCopies<0>();
  __syncthreads();
  finish(s, a.heads_of_group - 1);
  // d_c += dW b, over positions up to the warp's; d_b += dW^T c, over those from the warp's on.
  const Tile<kQ> d_pairs{s.heads[a.heads_of_group % 2].x};
  const Share share(static_cast<int>(threadIdx.x));
  uint32_t left[4];
  if (share.of_c) {
    for (int j = 0; j <= share.row; j += 16) {
      d_pairs.LoadATransposed(left, share.row, 0, j, 0);
      AddPairs(sums, left, b, j);
    }
    StoreRows(RowsOfChunk(a.d_c, a, p, p.group(a)), share.row, 0, sums);
  } else {
    for (int i = share.row; i < kQ; i += 16) {
      d_pairs.LoadA(left, share.row, 0, i, 0);
      AddPairs(sums, left, c, i);
    }
    StoreRows(RowsOfChunk(a.d_b, a, p, p.group(a)), share.row, 0, sums);
  }
}

constexpr int kStepThreads = 256, kStepWarps = kStepThreads / kWarp;
// d_dt, and the chunk's sum of d_a_log: a warp per chunk of a head, a lane has four positions.
__global__ void __launch_bounds__(kStepThreads) StepGradientKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = int64_t{blockIdx.x} * kStepWarps + threadIdx.x / kWarp, chunks = e / a.heads;
  if (chunks >= int64_t{a.batch} * a.chunks) return;
  const SsdPlace p{static_cast<int>(chunks / a.chunks), static_cast<int>(chunks % a.chunks),
                   static_cast<int>(e % a.heads)};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float4* const spans = reinterpret_cast<const float4*>(a.spans) + p.position(a) + 4 * lane;
  float4 own[4];
  double later = 0, earlier = 0;
  for (int i = 0; i < 4; ++i) {
    own[i] = spans[i];
    later += static_cast<double>(own[i].x) + static_cast<double>(own[i].w);
    earlier += static_cast<double>(own[i].y);
  }
  const double own_later = later, own_earlier = earlier;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const double after = __shfl_down_sync(0xffffffffu, later, distance),
                 before = __shfl_up_sync(0xffffffffu, earlier, distance);
    if (lane + distance < kWarp) later += after;
    if (lane >= distance) earlier += before;
  }
  later -= own_later, earlier -= own_earlier;  // of the lanes after this one, and before
  earlier += static_cast<double>(a.state_spans[p.of_head(a)]);
  double span[4];
  for (int i = 3; i >= 0; --i) {
    later += static_cast<double>(own[i].x) + static_cast<double>(own[i].w);
    span[i] = later;
  }
  const double rate = static_cast<double>(DecayRate(a, p.head));
  double sum = 0;
  for (int i = 0; i < 4; ++i) {
    span[i] = rate * (span[i] + earlier);
    earlier += static_cast<double>(own[i].y);
    const int at = 4 * lane + i;
    if (at >= p.count(a)) continue;
    a.d_dt[p.step(a, at)] = static_cast<float>(static_cast<double>(own[i].z) + span[i]);
    sum += static_cast<double>(a.dt[p.step(a, at)]) * span[i];
  }
  sum = WarpSum(sum);
  if (lane == 0) a.sums[e] = sum;
}

}  // namespace

void LaunchSsdGroupGradients(const SsdArgs& a, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(a.groups),
                  static_cast<unsigned>(a.batch));
  AllowShared(GroupKernel, sizeof(GroupBuffers));
  LaunchKernel(launch, grid, kThreads, sizeof(GroupBuffers), GroupKernel, a);
  const int64_t chunks = int64_t{a.batch} * a.chunks * a.heads;
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(chunks, kStepWarps)), kStepThreads, 0,
               StepGradientKernel, a);
}

}  // namespace millrace::cuda
