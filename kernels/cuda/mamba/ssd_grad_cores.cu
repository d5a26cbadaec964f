#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_pairs.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "runtime/base/cuda/launch.cuh"

// The gradients of the scan on tensor cores; kernels/cpu/mamba/ssd_scan_grad.cc has the formulas
// and the letters. Blocks take a chunk of a group, head by head.
namespace millrace::cuda {
namespace {

// d_x, and the gradients of a group's pairs c.b, transposed: blocks of pairs have rows j.
struct XBuffers {
  uint16_t b[kQ * kN];
  struct Head {
    uint16_t x[kQ * kP], d_out[kQ * kP], d_state[kP * kN];
  } heads[kStages];  // ahead of the third head, its buffer has c
  Steps steps[kStages];
  // Of two heads: pairs, decayed, as fragments; sums of dW[i,j] c[i].b[j] over i > j of a block, by
  // i and by j; and the warps' sums of x * d_out.
  struct Pairs {
    uint4 m[kBlocks][kWarp];
    float by_i[kBlocks][16], by_j[kBlocks][16];
    float d_sums[kPairWarps];
  } pairs[2];
  float to_state[kQ], from_x[kQ];  // of half the channels
  FirstHead first;
  Stages<kPairThreads> stages;
  uint64_t m_there;
};
static_assert(sizeof(uint16_t[2][kQ * kP]) == sizeof(uint16_t[kQ * kN]));

// Begins to fill the buffers of head h of a group.
__device__ __forceinline__ void FillHead(XBuffers& s, const SsdArgs& a, int h) {
  XBuffers::Head& head = s.heads[h % kStages];
  RowsOfChunk(s.first.x, a.x, s.first.count, h).Fill<kPairThreads>(Tile<kP>{head.x});
  RowsOfChunk(s.first.out, a.out, s.first.count, h).Fill<kPairThreads>(Tile<kP>{head.d_out});
  FillState<kPairThreads>(Tile<kN>{head.d_state}, s.first.Behind(h));
  FillSteps(s.steps[h % kStages], s.first, a, h);
  s.stages.Filled(h, a.x.rows.wide && a.out.rows.wide);
}

// The sums over the eight lanes that share columns, of four values; lanes that differ in lane / 4
// % 4 get that one of them.
__device__ __forceinline__ float SumOfLanes(const float (&v)[4]) {
  const bool odd = threadIdx.x / 4 % 2 == 1, upper = threadIdx.x / 8 % 2 == 1;
  const float low =
                  __fadd_rn(odd ? v[1] : v[0], __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 4)),
              high =
                  __fadd_rn(odd ? v[3] : v[2], __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 4));
  const float sum =
      __fadd_rn(upper ? high : low, __shfl_xor_sync(0xffffffffu, upper ? low : high, 8));
  return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 16));
}

// One head's block of pairs: d_pairs += dW^T; M^T, and sums of dW[i,j] c[i].b[j], to `s`.
__device__ __forceinline__ void PairsOfBlock(float (&d_pairs)[2][4], const float (&pairs)[2][4],
                                             XBuffers& s, int h, const Block<true>& block) {
  const Lane l(0);
  const int i0 = 16 * block.i, j0 = 16 * block.j, index = block.index();
  const Steps& steps = s.steps[h % kStages];
  XBuffers::Head& head = s.heads[h % kStages];
  XBuffers::Pairs& made = s.pairs[h % 2];
  const Tile<kP> x{head.x}, d_out{head.d_out};
  float d_m[2][4] = {};
#pragma unroll
  for (int k = 0; k < kP; k += 16) {
    uint32_t x_rows[4], b[4];
    x.LoadA(x_rows, j0, 0, 0, k);
    d_out.LoadB(b, 0, k, i0, 0);
    Mma(d_m[0], x_rows, b[0], b[1]);
    Mma(d_m[1], x_rows, b[2], b[3]);
  }
  float w[2][4];
  DecaysOf(w, steps, block);
  const float dt[2] = {steps.dt[j0 + l.row], steps.dt[j0 + l.row + 8]};
  float by_j[2] = {}, z[2][4];
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float d_w = __fmul_rn(d_m[t][e], dt[e / 2]), m = __fmul_rn(w[t][e], pairs[t][e]);
      d_pairs[t][e] = __fmaf_rn(d_w, w[t][e], d_pairs[t][e]);
      z[t][e] = __fmul_rn(d_w, m);
      if (block.i == block.j && l.Row(e) == 8 * t + l.column + e % 2) z[t][e] = 0.0f;
      by_j[e / 2] = __fadd_rn(by_j[e / 2], z[t][e]);
      w[t][e] = m;
    }
  uint32_t m[4];
  FragmentOf(m, w[0], w[1]);
  made.m[index][l.lane] = make_uint4(m[0], m[1], m[2], m[3]);
  by_j[0] = QuadSum(by_j[0]), by_j[1] = QuadSum(by_j[1]);
  if (l.lane % 4 == 0) made.by_j[index][l.row] = by_j[0], made.by_j[index][l.row + 8] = by_j[1];
  const float columns[4] = {__fadd_rn(z[0][0], z[0][2]), __fadd_rn(z[0][1], z[0][3]),
                            __fadd_rn(z[1][0], z[1][2]), __fadd_rn(z[1][1], z[1][3])};
  const float by_i = SumOfLanes(columns);
  const int column = l.lane / 4 % 4;
  if (l.lane < 16) made.by_i[index][column / 2 * 8 + l.column + column % 2] = by_i;
}

// For each of a lane's two rows, the sum over the warp's channels of x * d.
__device__ __forceinline__ float2 RowDots(const OwnPairs& x, const float (&d)[kHalfTiles][4]) {
  float sums[2] = {};
#pragma unroll
  for (int t = 0; t < kHalfTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 own = x.At(t, half);
      sums[half] = __fmaf_rn(own.x, d[t][2 * half], sums[half]);
      sums[half] = __fmaf_rn(own.y, d[t][2 * half + 1], sums[half]);
    }
  return {QuadSum(sums[0]), QuadSum(sums[1])};
}

// d_u to d_x in place; the sum of x * d_out over the warp's rows and channels.
__device__ __forceinline__ float ToGradientOfX(float (&d_u)[kHalfTiles][4], float d,
                                               const OwnPairs& x, const OwnPairs& d_out,
                                               const float (&dt)[2]) {
  float sum = 0;
#pragma unroll
  for (int t = 0; t < kHalfTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 own = d_out.At(t, half), from = x.At(t, half);
      float &left = d_u[t][2 * half], &right = d_u[t][2 * half + 1];
      left = __fmaf_rn(d, own.x, __fmul_rn(dt[half], left));
      right = __fmaf_rn(d, own.y, __fmul_rn(dt[half], right));
      sum = __fmaf_rn(own.x, from.x, sum);
      sum = __fmaf_rn(own.y, from.y, sum);
    }
  return WarpSum(sum);
}

// Counts the threads of the warps that have short rows and no third block, from 0 on.
__device__ __forceinline__ int ThreadOfShortRows() {
  return static_cast<int>(threadIdx.x) - kSide * kWarp;
}

// Of a head, what its pairs' exponents span, once all blocks have their sums.
__device__ __forceinline__ void StoreSpansOfPairs(float* spans, const XBuffers::Pairs& made) {
  const int at = ThreadOfShortRows(), side = at / 16;
  if (at < 0 || at >= kQ) return;
  float by_i = 0, by_j = 0;
#pragma unroll 1
  for (int j = 0; j <= side; ++j)
    by_i = __fadd_rn(by_i, made.by_i[Block<true>{side, j}.index()][at % 16]);
  const float* of_j = &made.by_j[Block<true>{side, side}.index()][at % 16];
#pragma unroll 1
  for (int i = side; i < kSide; ++i, of_j += 16) by_j = __fadd_rn(by_j, *of_j);
  spans[4 * at + 3] = __fsub_rn(by_i, by_j);
}

// The head's sum of x * d_out over warps, in order.
__device__ __forceinline__ void StoreSum(const SsdArgs& a, const SsdPlace& p,
                                         const XBuffers::Pairs& made) {
  if (ThreadOfShortRows() != 0) return;
  double sum = 0;
#pragma unroll
  for (const float of_warp : made.d_sums) sum = __dadd_rn(sum, static_cast<double>(of_warp));
  a.sums[int64_t{a.batch} * a.chunks * a.heads + p.of_head(a)] = sum;
}

// Of a warp's rows of a head: d x to the state and from x, of all channels. Barriers of two warps;
// 0 is __syncthreads. The one that leaves its sums does not come back before the other has passed
// the next head's pairs.
__device__ __forceinline__ void StoreSpansOfRows(float* of_head, XBuffers& s, const Rows16& rows,
                                                 const Lane& l, const float2& to_state,
                                                 const float2& from_x) {
  const bool has = l.lane % 4 == 0;
  if (rows.channel > 0) {
    if (has) {
      s.to_state[l.row] = to_state.x, s.to_state[l.row + 8] = to_state.y;
      s.from_x[l.row] = from_x.x, s.from_x[l.row + 8] = from_x.y;
    }
    asm volatile("bar.arrive %0, %1;" : : "r"(1 + rows.tile), "n"(2 * kWarp) : "memory");
  } else {
    asm volatile("bar.sync %0, %1;" : : "r"(1 + rows.tile), "n"(2 * kWarp) : "memory");
    if (!has) return;
    float* const spans = of_head + 4 * l.row;
    spans[1] = __fadd_rn(to_state.x, s.to_state[l.row]);
    spans[2] = __fadd_rn(from_x.x, s.from_x[l.row]);
    spans[4 * 8 + 1] = __fadd_rn(to_state.y, s.to_state[l.row + 8]);
    spans[4 * 8 + 2] = __fadd_rn(from_x.y, s.from_x[l.row + 8]);
  }
}

// A warp's rows of d_x of head h of a group.
__device__ __forceinline__ void XOfHead(const SsdArgs& a, const SsdPlace& group, XBuffers& s,
                                        int h) {
  const Rows16 rows;
  const Lane l(rows.row);
  XBuffers::Head& head = s.heads[h % kStages];
  XBuffers::Pairs& made = s.pairs[h % 2];
  const Steps& steps = s.steps[h % kStages];
  const Tile<kP> x_tile{head.x}, d_out_tile{head.d_out};
  float d_u[kHalfTiles][4] = {};
  AddProduct(d_u, Tile<kN>{s.b}, Tile<kN>{head.d_state}, rows);
  ScaleRows(d_u, steps.ToEnd(l.row), steps.ToEnd(l.row + 8));
  const OwnPairs x(x_tile, rows);
  float2 to_state = RowDots(x, d_u);
  // Once all warps have this head's pairs they are done with the head before, and with c.
  WaitFor(SharedAddress(&s.m_there), h % 2);
  if (h + kStages - 1 < a.heads_of_group) FillHead(s, a, h + kStages - 1);
  if (h > 0) StoreSum(a, {group.batch, group.chunk, group.head + h - 1}, s.pairs[1 - h % 2]);
  StoreSpansOfPairs(s.first.Spans(a, h), made);
  const uint4* m = &made.m[Block<true>{rows.tile, rows.tile}.index()][l.lane];
#pragma unroll 1
  for (int i = rows.row; i < kQ; i += 16, m += kWarp)
    AddBlock(d_u, *m, d_out_tile, i, rows.channel);
  const float2 from_x = RowDots(x, d_u);
  const float dt[2] = {steps.dt[l.row], steps.dt[l.row + 8]};
  to_state.x = __fmul_rn(dt[0], to_state.x), to_state.y = __fmul_rn(dt[1], to_state.y);
  const OwnPairs d_out(d_out_tile, rows);
  const float sum = ToGradientOfX(d_u, ElementOf(a.d, group.head + h), x, d_out, dt);
  if (l.lane == 0) made.d_sums[threadIdx.x / kWarp] = sum;
  StoreRows(RowsOfChunk(s.first.d_x, a.d_x, s.first.count, h), rows.row, rows.channel, d_u);
  StoreSpansOfRows(s.first.Spans(a, h), s, rows, l, to_state, from_x);
}

// Blocks of d_pairs with i < j stay as they are: nobody reads them.
__device__ __forceinline__ void StoreBlock(const SsdArgs& a, const SsdPlace& p,
                                           const Block<true>& block, const float (&d_pairs)[2][4]) {
  const Lane l(16 * block.j);
  std::byte* const to = static_cast<std::byte*>(a.d_pairs) +
                        2 * (p.pairs_of_group(a) + l.row * kQ + 16 * block.i + l.column);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    StorePair(to + 16 * t, d_pairs[t][0], d_pairs[t][1]);
    StorePair(to + 16 * t + 2 * 8 * kQ, d_pairs[t][2], d_pairs[t][3]);
  }
}

__global__ void __launch_bounds__(kPairThreads, 1) XKernel(const SsdArgs a) {
  extern __shared__ __align__(256) unsigned char shared_memory[];
  BeginKernel();
  XBuffers& s = *reinterpret_cast<XBuffers*>(shared_memory);
  const SsdPlace group{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x),
                       static_cast<int>(blockIdx.y) * a.heads_of_group};
  if (threadIdx.x == 0) {
    s.first.Init(a, group);
    s.stages.Init();
    InitBarrier(SharedAddress(&s.m_there), kPairThreads);
  }
  __syncthreads();
  const Tile<kN> b{s.b}, c{s.heads[kStages - 1].x};
  RowsOfChunk(a.b, a, group, group.group(a)).Fill<kPairThreads>(b);
  RowsOfChunk(a.c, a, group, group.group(a)).Fill<kPairThreads>(c);
  CommitCopies();
  for (int h = 0; h < min(kStages - 1, a.heads_of_group); ++h) FillHead(s, a, h);
  CommitCopies();
  WaitCopies<1>();
  __syncthreads();
  const PairSlots<true> slots;
  float pairs[kSlots][2][4] = {}, d_pairs[kSlots][2][4] = {};
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    if (slots.Has(slot))
      ProductsOfBlock(pairs[slot], b, c, 16 * slots.blocks[slot].j, 16 * slots.blocks[slot].i);
#pragma unroll 1
  for (int turn = 0; turn < a.heads_of_group; ++turn) {
    const int h = Anew(turn);
    XBuffers& here = *reinterpret_cast<XBuffers*>(shared_memory + Anew(0));
    here.stages.Wait(h);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
      if (slots.Has(slot)) PairsOfBlock(d_pairs[slot], pairs[slot], here, h, slots.blocks[slot]);
    __syncwarp();
    Arrive(SharedAddress(&here.m_there));
    XOfHead(a, group, here, h);
  }
  __syncthreads();
  const int last = a.heads_of_group - 1;
  StoreSum(a, {group.batch, group.chunk, group.head + last}, s.pairs[last % 2]);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    if (slots.Has(slot)) StoreBlock(a, group, slots.blocks[slot], d_pairs[slot]);
}

}  // namespace

void LaunchSsdGradCores(const SsdArgs& a, const Launch& launch) {
  LaunchSsdSteps(a, launch);
  LaunchSsdStates<false>(a, launch);
  LaunchSsdStates<true>(a, launch);
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(a.groups),
                  static_cast<unsigned>(a.batch));
  AllowShared(XKernel, sizeof(XBuffers));
  LaunchKernel(launch, grid, kPairThreads, sizeof(XBuffers), XKernel, a);
  LaunchSsdGroupGradients(a, launch);
}

}  // namespace millrace::cuda
