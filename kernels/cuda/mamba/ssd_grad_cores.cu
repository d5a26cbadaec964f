#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_grad_pairs.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

// The gradients of the scan on tensor cores; kernels/cpu/mamba/ssd_scan_grad.cc has the formulas
// and the letters. Blocks take a chunk of a group, head by head.
namespace millrace::cuda {
namespace {

constexpr int kThreads = kGradThreads;

// d_x, and the gradients of a group's pairs c.b, transposed: a warp has 16 positions j.
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
                                        float (&d_pairs)[kQ / 8][4], const Share& share) {
  if (share.taken > 0) TakenPairs(share, d_pairs, pairs, s, buffer);
  const int row = 16 * share.own;
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
  Pairs<kQ>(d_u, d_pairs, columns, pairs, s, buffer, row, row, kQ - 16 * share.given, 0);
  if (share.given > 0) AddTaken(share, d_u, columns, s);
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
    for (int warp = 0; warp < kGradWarps; ++warp)
      sum = __dadd_rn(sum, static_cast<double>(s.d_sums[warp]));
    a.sums[int64_t{a.batch} * a.chunks * a.heads + p.of_head(a)] = sum;
  }
}

__device__ __forceinline__ SsdPlace GroupOf(const SsdArgs& a) {
  return {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
          static_cast<int>(blockIdx.y) * a.heads_of_group};
}

// The blocks that a warp has, and zeros where i < j in all of a block.
__device__ __forceinline__ void StorePairs(const SsdArgs& a, const SsdPlace& p, const Share& share,
                                           const float (&d_pairs)[kQ / 8][4]) {
  std::byte* const group = static_cast<std::byte*>(a.d_pairs) + 2 * p.pairs_of_group(a);
  const auto store = [&](int row, int column, const float(&pairs)[4], bool zero) {
    const Lane l(row);
    std::byte* const to = group + 2 * (l.row * kQ + column + l.column);
    StorePair(to, true, zero ? 0.0f : pairs[0], zero ? 0.0f : pairs[1]);
    StorePair(to + 2 * 8 * kQ, true, zero ? 0.0f : pairs[2], zero ? 0.0f : pairs[3]);
  };
#pragma unroll
  for (int t = 0; t < kQ / 8; ++t) {
    const int block = t / 2;
    if (block < Share::kBlocks - share.given)
      store(16 * share.own, 8 * t, d_pairs[t], block < share.own);
    if (block < share.taken)
      store(16 * share.other, 8 * t + 16 * (Share::kBlocks - share.taken), d_pairs[t], false);
  }
}

__global__ void __launch_bounds__(kThreads, 1) XKernel(const SsdArgs a) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  BeginKernel();
  XBuffers& s = *reinterpret_cast<XBuffers*>(shared_memory);
  const Share share(static_cast<int>(threadIdx.x) / kWarp);
  const SsdPlace p = GroupOf(a);
  const Tile<kN> b{s.b}, c{s.c};
  FillRows<kN, kThreads>(b, a.b, a, p, p.group(a));
  FillRows<kN, kThreads>(c, a.c, a, p, p.group(a));
  FillHead(s, 0, a, p);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  float pairs[kQ / 8][4] = {}, d_pairs[kQ / 8][4] = {};  // of rows j, columns i
  PairsOfRows(pairs, b, c, 16 * share.own, 16 * share.own, kQ - 16 * share.given);
  PairsOfRows(pairs, b, c, 16 * share.other, 0, 16 * share.taken,
              16 * (Share::kBlocks - share.taken));
  for (int h = 0; h < a.heads_of_group; ++h) {
    const SsdPlace here{p.batch, p.chunk, p.head + h};
    if (h + 1 < a.heads_of_group) FillHead(s, 1 - h % 2, a, {p.batch, p.chunk, p.head + h + 1});
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    HeadOfX(a, here, s, h % 2, pairs, d_pairs, share);
    __syncthreads();  // sums are there; the buffer is filled again
    FinishHead(a, here, s);
  }
  StorePairs(a, p, share, d_pairs);
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
