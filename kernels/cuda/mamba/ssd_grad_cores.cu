#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

// The gradients of the scan on tensor cores; kernels/cpu/ssd_scan_grad.cc has the formulas and the
// letters. Blocks take a chunk of a group, head by head.
namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// What a lane's accumulators of [16, .] belong to: rows of its lower and upper half, and the first
// column of each tile of eight.
struct Lane {
  int lane, row, column;
  __device__ explicit Lane(int first_row)
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        row(first_row + lane / 4),
        column(lane % 4 * 2) {}
  __device__ int Row(int e) const { return row + e / 2 * 8; }  // of element e of a tile
};

// d_x, and the gradients of a group's pairs c.b, transposed: a warp has 16 positions j.
struct XBuffers {
  uint16_t b[kQ * kN], c[kQ * kN];
  uint16_t x[2][kQ * kP], d_out[2][kQ * kP], d_state[2][kP * kN];
  Steps steps[2];
  float row_sums[kWarps][kQ];  // of pairs (i, j) of a warp's j, by i
  float column_sums[kQ];       // of all pairs (i, j), by j
  float d_sums[kWarps];
};

__device__ __forceinline__ void FillHead(XBuffers& s, int buffer, const SsdArgs& a,
                                         const SsdPlace& p) {
  FillRows<kP, kThreads>(Tile<kP>{s.x[buffer]}, a.x, a, p, p.head);
  FillRows<kP, kThreads>(Tile<kP>{s.d_out[buffer]}, a.out, a, p, p.head);
  FillState<kThreads>(Tile<kN>{s.d_state[buffer]}, a.states_behind, a, p);
  FillSteps<kThreads>(s.steps[buffer], a, p);
}

// For each of a lane's two rows, the sum over channels of left[row, :] * d[row, :].
__device__ __forceinline__ float2 RowDots(const Tile<kP>& left, const float (&d)[kP / 8][4],
                                          const Lane& l) {
  float sums[2] = {};
#pragma unroll
  for (int t = 0; t < kP / 8; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = left.PairAt(l.row + 8 * half, 8 * t + l.column);
      sums[half] = __fmaf_rn(pair.x, d[t][2 * half], sums[half]);
      sums[half] = __fmaf_rn(pair.y, d[t][2 * half + 1], sums[half]);
    }
  return {QuadSum(sums[0]), QuadSum(sums[1])};
}

// The sums over a warp's 16 rows j, of tile columns i: lanes 0 to 3 have those of their two.
__device__ __forceinline__ float2 ColumnSums(const float (&z)[4]) {
  float low = __fadd_rn(z[0], z[2]), high = __fadd_rn(z[1], z[3]);
#pragma unroll
  for (int distance = 4; distance < kWarp; distance *= 2) {
    low = __fadd_rn(low, __shfl_xor_sync(0xffffffffu, low, distance));
    high = __fadd_rn(high, __shfl_xor_sync(0xffffffffu, high, distance));
  }
  return {low, high};
}

// One head's pairs (i, j), for blocks of 16 columns i from the warp's own on: d_u += M^T d_out;
// d_pairs += dW^T; sums of dW[i,j] c[i].b[j] over i > j, by j to `columns` and by i to row_sums.
__device__ __forceinline__ void Pairs(float (&d_u)[kP / 8][4], float (&d_pairs)[kQ / 8][4],
                                      float (&columns)[2], const float (&pairs)[kQ / 8][4],
                                      XBuffers& s, int buffer, const Lane& l, int row) {
  const Steps& steps = s.steps[buffer];
  const Tile<kP> x{s.x[buffer]}, d_out{s.d_out[buffer]};
#pragma unroll
  for (int i0 = 0; i0 < kQ; i0 += 16) {
    if (i0 < row) continue;
    float d_m[2][4] = {}, m[2][4];
#pragma unroll
    for (int k = 0; k < kP / 16; ++k) {
      uint32_t x_rows[4], b[4];  // loaded anew: registers are short
      x.LoadA(x_rows, row, 16 * k);
      d_out.LoadB(b, 16 * k, i0);
      Mma(d_m[0], x_rows, b[0], b[1]);
      Mma(d_m[1], x_rows, b[2], b[3]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float z[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = l.Row(e), i = i0 + 8 * t + l.column + e % 2;
        const float between = i < j ? 0.0f : steps.Between(i, j);
        const float d_w = __fmul_rn(__fmul_rn(d_m[t][e], steps.dt[j]), between);
        const float pair = pairs[i0 / 8 + t][e];
        d_pairs[i0 / 8 + t][e] = __fadd_rn(d_pairs[i0 / 8 + t][e], d_w);
        z[e] = i > j ? __fmul_rn(d_w, pair) : 0.0f;
        columns[e / 2] = __fadd_rn(columns[e / 2], z[e]);
        m[t][e] = __fmul_rn(between, pair);
      }
      const float2 sums = ColumnSums(z);
      if (l.lane < 4) {
        s.row_sums[row / 16][i0 + 8 * t + l.column] = sums.x;
        s.row_sums[row / 16][i0 + 8 * t + l.column + 1] = sums.y;
      }
    }
    uint32_t left[4];
    FragmentOf(left, m[0], m[1]);
#pragma unroll
    for (int t = 0; t < kP / 8; t += 2) {
      uint32_t b[4];
      d_out.LoadBTransposed(b, i0, 8 * t);
      Mma(d_u[t], left, b[0], b[1]);
      Mma(d_u[t + 1], left, b[2], b[3]);
    }
  }
}

// d_u to d_x in place; the head's sum of x * d_out over the warp's rows.
__device__ __forceinline__ float ToGradientOfX(float (&d_u)[kP / 8][4], const SsdArgs& a, int head,
                                               const Tile<kP>& x, const Tile<kP>& d_out,
                                               const Steps& steps, const Lane& l) {
  const float d = ElementOf(a.d, head);
  float sum = 0;
#pragma unroll
  for (int t = 0; t < kP / 8; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = l.row + 8 * half;
      const float2 own = d_out.PairAt(j, 8 * t + l.column), from = x.PairAt(j, 8 * t + l.column);
      float &left = d_u[t][2 * half], &right = d_u[t][2 * half + 1];
      left = __fmaf_rn(d, own.x, __fmul_rn(steps.dt[j], left));
      right = __fmaf_rn(d, own.y, __fmul_rn(steps.dt[j], right));
      sum = __fmaf_rn(own.x, from.x, sum);
      sum = __fmaf_rn(own.y, from.y, sum);
    }
  return WarpSum(sum);
}

// One head of XKernel, whose operands are in `buffer`.
__device__ __forceinline__ void HeadOfX(const SsdArgs& a, const SsdPlace& p, XBuffers& s,
                                        int buffer, const float (&pairs)[kQ / 8][4],
                                        float (&d_pairs)[kQ / 8][4], int row) {
  const Lane l(row);
  const Steps& steps = s.steps[buffer];
  const Tile<kP> x{s.x[buffer]}, d_out{s.d_out[buffer]};
  float d_u[kP / 8][4] = {};
  ProductOfRows(d_u, Tile<kN>{s.b}, Tile<kN>{s.d_state[buffer]}, row);
  const float low = steps.ToEnd(l.row), high = steps.ToEnd(l.row + 8);
#pragma unroll
  for (int t = 0; t < kP / 8; ++t) {
    d_u[t][0] = __fmul_rn(d_u[t][0], low), d_u[t][1] = __fmul_rn(d_u[t][1], low);
    d_u[t][2] = __fmul_rn(d_u[t][2], high), d_u[t][3] = __fmul_rn(d_u[t][3], high);
  }
  const float2 to_state = RowDots(x, d_u, l);
  float columns[2] = {};
  Pairs(d_u, d_pairs, columns, pairs, s, buffer, l, row);
  const float2 from_x = RowDots(x, d_u, l);
  columns[0] = QuadSum(columns[0]), columns[1] = QuadSum(columns[1]);
  if (l.lane % 4 == 0)
    for (int half = 0; half < 2; ++half) {
      const int j = l.row + 8 * half;
      float* const spans = a.spans + 4 * (p.position(a) + j);
      spans[1] = __fmul_rn(steps.dt[j], half == 0 ? to_state.x : to_state.y);
      spans[2] = half == 0 ? from_x.x : from_x.y;
      s.column_sums[j] = columns[half];
    }
  const float sum = ToGradientOfX(d_u, a, p.head, x, d_out, steps, l);
  if (l.lane == 0) s.d_sums[row / 16] = sum;
  StoreRows(a.d_x, a, p, p.head, row, d_u);
}

// A head's sums over warps, in order, once all have theirs.
__device__ __forceinline__ void FinishHead(const SsdArgs& a, const SsdPlace& p, const XBuffers& s) {
  const int i = threadIdx.x;
  if (i < kQ) {
    float sum = 0;
    for (int warp = 0; warp <= i / 16; ++warp) sum = __fadd_rn(sum, s.row_sums[warp][i]);
    a.spans[4 * (p.position(a) + i) + 3] = __fsub_rn(sum, s.column_sums[i]);
  } else if (i == kQ) {
    double sum = 0;
    for (int warp = 0; warp < kWarps; ++warp)
      sum = __dadd_rn(sum, static_cast<double>(s.d_sums[warp]));
    a.sums[int64_t{a.batch} * a.chunks * a.heads + p.of_head(a)] = sum;
  }
}

__device__ __forceinline__ SsdPlace GroupOf(const SsdArgs& a) {
  return {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
          static_cast<int>(blockIdx.y) * a.heads_of_group};
}

__global__ void __launch_bounds__(kThreads, 1) XKernel(const SsdArgs a) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  BeginKernel();
  XBuffers& s = *reinterpret_cast<XBuffers*>(shared_memory);
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const SsdPlace p = GroupOf(a);
  const Tile<kN> b{s.b}, c{s.c};
  FillRows<kN, kThreads>(b, a.b, a, p, p.group(a));
  FillRows<kN, kThreads>(c, a.c, a, p, p.group(a));
  FillHead(s, 0, a, p);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  float pairs[kQ / 8][4] = {}, d_pairs[kQ / 8][4] = {};  // of rows j, columns i
  PairsOfRows(pairs, b, c, row, row, kQ);
  for (int h = 0; h < a.heads_of_group; ++h) {
    const SsdPlace here{p.batch, p.chunk, p.head + h};
    if (h + 1 < a.heads_of_group) FillHead(s, 1 - h % 2, a, {p.batch, p.chunk, p.head + h + 1});
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    HeadOfX(a, here, s, h % 2, pairs, d_pairs, row);
    __syncthreads();  // sums are there; the buffer is filled again
    FinishHead(a, here, s);
  }
  const Lane l(row);
  std::byte* const to =
      static_cast<std::byte*>(a.d_pairs) + 2 * (p.pairs_of_group(a) + l.row * kQ + l.column);
#pragma unroll
  for (int t = 0; t < kQ / 8; ++t) {
    StorePair(to + 16 * t, true, d_pairs[t][0], d_pairs[t][1]);
    StorePair(to + 16 * t + 2 * 8 * kQ, true, d_pairs[t][2], d_pairs[t][3]);
  }
}

}  // namespace

void LaunchSsdGradCores(const SsdArgs& a, const Launch& launch) {
  LaunchSsdSteps(a, launch);
  LaunchSsdStates<false>(a, launch);
  LaunchSsdStates<true>(a, launch);
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(a.groups),
                  static_cast<unsigned>(a.batch));
  AllowShared(XKernel, sizeof(XBuffers));
  LaunchKernel(launch, grid, kThreads, sizeof(XBuffers), XKernel, a);
  LaunchSsdGroupGradients(a, launch);
}

}  // namespace millrace::cuda
