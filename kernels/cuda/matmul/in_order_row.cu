// One row by a weight, in order: one_row.h's norm ahead of a product whose sums are those of
// in_order_rows.cu. Each block has the row to itself, formed once, in shared memory; a ring brings
// the weight's lines, and where these are constant it fills while the kernel before runs. Lines are
// the rows of wgmma's tiles, the row is the first of eight columns.
//
// Bits  The norm is norm.cu's (norm_forward.cuh, by as many warps), the chain of products that of
//       in_order_rows.cu: tests/kernels/cuda/in_order_row_test.cc compares with both, bit by bit.
#include <algorithm>

#include "kernels/cuda/matmul/few_rows.cuh"
#include "kernels/cuda/matmul/few_rows_stages.cuh"
#include "kernels/cuda/matmul/one_row.h"
#include "kernels/cuda/norm/norm_forward.cuh"
#include "kernels/cuda/norm/norm_launch.h"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kBoxes = 2;     // of the depth, to a stage
constexpr int kUnderWay = 3;  // stages that are multiplied, so that the chain waits for none
// A block whose tiles have more stages than the ring gives one back before it waits for the next.
constexpr int kMostStages = 32;
static_assert(kMostStages > kUnderWay);
constexpr int kRoom = 104 << 10;  // of a block, so that two have a place
constexpr int kTileLines = 64;

// one_row.h's operands, pre absent, and how the kernel shares them.
struct InOrderRowArgs {
  Rows x, residual, sum, norm_weight, norm_bias, bias, pre, out;
  NormOfRow norm;  // columns: the depth
  int warps = 1;   // of the norm's row
  int columns = 0;
  bool gelu = false, constant = false;
  int lines = 0;   // of a tile, a multiple of eight up to kTileLines
  int tiles = 0;   // which blocks take in turn
  int stages = 0;  // of the ring
  int ring = 0;    // bytes from the block's shared memory to it, a multiple of 1024
};

// Of a block's shared memory; then the row, zeros up to whole stages, then at `ring` the stages,
// behind which wgmma reads on where a tile has fewer lines than kTileLines: those sums are
// nobody's.
struct Barriers {
  uint64_t full[kMostStages], empty[kMostStages];
};
struct Place {
  const InOrderRowArgs& g;
  std::byte* memory;

  __device__ __forceinline__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory);
  }
  __device__ __forceinline__ uint4* row() const {
    return reinterpret_cast<uint4*>(memory + sizeof(Barriers));
  }
  __device__ __forceinline__ int box_bytes() const { return g.lines * kLineBytes; }
  __device__ __forceinline__ uint32_t stage(int i) const {
    return SharedAddress(memory) + static_cast<uint32_t>(g.ring + i * kBoxes * box_bytes());
  }
  __device__ __forceinline__ int boxes() const {
    return (g.norm.columns + kBoxDepth - 1) / kBoxDepth;
  }
  // Stages of all tiles of this block.
  __device__ __forceinline__ int AllStages() const {
    const int blocks = static_cast<int>(gridDim.x),
              tiles = (g.tiles - static_cast<int>(blockIdx.x) + blocks - 1) / blocks;
    return tiles * ((boxes() + kBoxes - 1) / kBoxes);
  }
};

// By one thread, ahead of Copies of its own; then a barrier of the block.
__device__ __forceinline__ void InitBarriers(Barriers& barriers, int stages) {
  for (int i = 0; i < stages; ++i) {
    InitBarrier(SharedAddress(&barriers.full[i]), 1);
    InitBarrier(SharedAddress(&barriers.empty[i]), kWarpgroup / kWarp);
  }
  FenceNewBarriers();
  FenceSharedWrites();  // its own copies come ahead of that barrier
}

// By one thread: the stages of the block's tiles in turn.
struct Copies {
  StageRing ring;
  int tile = static_cast<int>(blockIdx.x), box = 0;

  __device__ __forceinline__ void Begin(const Place& at, const CUtensorMap& weight, int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      WaitFor(SharedAddress(&at.barriers().empty[ring.stage]), ring.parity ^ 1);
      const uint32_t full = SharedAddress(&at.barriers().full[ring.stage]);
      // Beyond the depth copies bring zeros, which change no sum.
      ArriveAndExpect(full, static_cast<uint32_t>(kBoxes * at.box_bytes()));
#pragma unroll
      for (int i = 0; i < kBoxes; ++i)
        CopyBox(at.stage(ring.stage) + static_cast<uint32_t>(i * at.box_bytes()), weight, full,
                (box + i) * kBoxDepth, tile * at.g.lines, 0);
      ring.Next(at.g.stages);
      box += kBoxes;
      if (box >= at.boxes()) box = 0, tile += static_cast<int>(gridDim.x);
    }
  }
};

// By the warpgroup: tile by tile, each product behind the one before.
struct Products {
  StageRing ring, done;

  __device__ __forceinline__ void GiveBack(const Place& at) {
    if (threadIdx.x % kWarp == 0) Arrive(SharedAddress(&at.barriers().empty[done.stage]));
    done.Next(at.g.stages);
  }
  __device__ __forceinline__ void Multiply(const Place& at, float (&sums)[4]) {
    const int boxes = at.boxes();
    uint64_t row = LineDescriptor(SharedAddress(at.row()));
#pragma unroll 1
    for (int box = 0; box < boxes; box += kBoxes) {
      WaitFor(SharedAddress(&at.barriers().full[ring.stage]), ring.parity);
      FenceSums();
      const uint64_t stage = TileDescriptor<Lines::kDepth>(at.stage(ring.stage));
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        const uint64_t lines = stage + static_cast<uint64_t>(i * at.box_bytes() / 16);
#pragma unroll
        for (int step = 0; step < kBoxDepth / 16; ++step, row += kDepthStep<Lines::kDepth>)
          MultiplyTiles<8, Lines::kDepth, Lines::kDepth>(
              sums, lines + step * kDepthStep<Lines::kDepth>, row, box > 0 || i > 0 || step > 0);
      }
      CommitProducts();
      WaitForProducts<kUnderWay>();
      if (box >= kUnderWay * kBoxes) GiveBack(at);
      ring.Next(at.g.stages);
    }
    WaitForProducts<0>();
    while (done.stage != ring.stage) GiveBack(at);
  }
};

// The warps of the warpgroup that share a row; where it has more than one such group, each forms
// the same bits, so that none waits for another, and they share what is to be stored.
struct WarpsOfRow : Group {
  __device__ explicit WarpsOfRow(int row_warps) : Group(row_warps, kWarpgroup) {}
  __device__ void Sync() const {
    if (warps == 2)
      SyncGroup<2 * kWarp, 2>(index + 1);
    else
      SyncGroup<kWarpgroup, 1>(1);
  }
  __device__ __forceinline__ bool Stores(int k, int columns) const {
    return column(k) < columns && (k & (count - 1)) == index;
  }
};

__device__ __forceinline__ uint4& PackAt(const Rows& rows, int column) {
  return *reinterpret_cast<uint4*>(reinterpret_cast<uint16_t*>(rows.data) + column);
}

constexpr Elements kShort = Elements::kBF16;
__device__ __forceinline__ Floats FloatsOf(const uint4& pack) {
  return ToFloats<kShort>({}, {pack});
}
__device__ __forceinline__ uint4 PackOf(const Floats& floats) {
  return FromFloats<kShort>({}, floats).low;
}

// What a thread stores of a norm's weight and bias, P packs of the row to a thread.
template <int P>
struct NormColumns {
  uint4 weight[P], bias[P];

  __device__ __forceinline__ void Read(const InOrderRowArgs& g, const WarpsOfRow& group) {
#pragma unroll
    for (int k = 0; k < P; ++k) {
      if (!group.Stores(k, g.norm.columns)) continue;
      weight[k] = PackAt(g.norm_weight, group.column(k));
      if (g.norm_bias.data != nullptr) bias[k] = PackAt(g.norm_bias, group.column(k));
    }
  }
};

template <int P>
__device__ __forceinline__ void FormRow(const InOrderRowArgs& g, const NormColumns<P>& columns,
                                        const WarpsOfRow& group, uint4* row) {
  const int depth = g.norm.columns;
  uint4 x[P], residual[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const bool inside = group.column(k) < depth;
    x[k] = inside ? PackAt(g.x, group.column(k)) : uint4{};
    if (g.residual.data != nullptr)
      residual[k] = inside ? PackAt(g.residual, group.column(k)) : uint4{};
  }
  Floats s[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    s[k] = FloatsOf(x[k]);
    if (g.residual.data == nullptr) continue;
    const uint4 rounded = PackOf(Plus(s[k], FloatsOf(residual[k])));
    s[k] = FloatsOf(rounded);
    if (blockIdx.x == 0 && group.Stores(k, depth)) PackAt(g.sum, group.column(k)) = rounded;
  }
  const RowStatistics of = StatisticsOf<true>(s, group, g.norm, true);
#pragma unroll
  for (int k = 0; k < P; ++k) {
    if (!group.Stores(k, depth)) continue;
    Floats y = Normed(s[k], of, FloatsOf(columns.weight[k]));
    if (g.norm_bias.data != nullptr) y = Plus(y, FloatsOf(columns.bias[k]));
    row[group.column(k) / kPack] = PackOf(y);
  }
}

// Of a tile's lines the pairs that a thread stores: of each half of its warp's sixteen, lanes 0, 8,
// 16 and 24 two lines each.
struct Pairs {
  int column[2];
  bool mine[2];
  uint32_t bias[2];

  __device__ __forceinline__ Pairs(const InOrderRowArgs& g, int tile) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = thread / kWarp * 16 + half * 8 + thread % kWarp / 4;
      column[half] = tile * g.lines + line;
      mine[half] = thread % 8 == 0 && line < g.lines && column[half] < g.columns;
      bias[half] = mine[half] && g.bias.data != nullptr ? *PairAt(g.bias, 0, column[half]) : 0;
    }
  }
  __device__ __forceinline__ void Store(const InOrderRowArgs& g, const float (&sums)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float own = sums[2 * half], next = __shfl_down_sync(0xffffffffu, own, 4);
      if (!mine[half]) continue;
      const uint32_t pair = FinishedPair(g, 0, column[half], own, next, bias[half]);
      if (g.out.bf16)
        *PairAt(g.out, 0, column[half]) = pair;
      else
        reinterpret_cast<float2*>(g.out.data)[column[half] / 2] =
            make_float2(LowOf(pair), HighOf(pair));
    }
  }
};

// P: packs of the row to a thread.
template <int P>
__global__ void __launch_bounds__(kStageThreads)
    InOrderRowKernel(const __grid_constant__ CUtensorMap weight, const InOrderRowArgs g) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  const Place at{g, memory};
  if (threadIdx.x / kWarp == kWarpgroup / kWarp) {
    Copies copies;
    const bool elected = IsElected();
    const int all = at.AllStages(), first = min(all, g.stages);
    if (elected) {
      InitBarriers(at.barriers(), g.stages);
      if (g.constant) copies.Begin(at, weight, first);
    }
    BeginKernel();
    LetNextBegin();
    if (elected && !g.constant) copies.Begin(at, weight, first);
    __syncthreads();
    if (elected) copies.Begin(at, weight, all - first);
    return;
  }
  const int packs = g.norm.columns / kPack, stage_packs = kBoxes * kBoxDepth / kPack,
            zeros = (packs + stage_packs - 1) / stage_packs * stage_packs - packs;
  if (static_cast<int>(threadIdx.x) < zeros) at.row()[packs + threadIdx.x] = uint4{};
  const WarpsOfRow group(g.warps);
  NormColumns<P> columns;
  if (g.constant) columns.Read(g, group);
  BeginKernel();
  if (!g.constant) columns.Read(g, group);
  FormRow(g, columns, group, at.row());
  FenceSharedWrites();
  __syncthreads();
  Products products;
  for (int tile = static_cast<int>(blockIdx.x); tile < g.tiles;
       tile += static_cast<int>(gridDim.x)) {
    const Pairs pairs(g, tile);
    float sums[4];
    products.Multiply(at, sums);
    pairs.Store(g, sums);
  }
#endif  // of other architectures nobody launches it
}

// Lines of a tile: as few as leave a multiprocessor to each block. Where tiles are many, two blocks
// to a multiprocessor have as many each.
unsigned ShareTiles(int depth, int sms, InOrderRowArgs* g) {
  constexpr int kFewest = 8;
  g->lines = static_cast<int>(
      std::min<int64_t>(kTileLines, RoundUp(CeilDiv(int64_t{g->columns}, sms), kFewest)));
  g->tiles = static_cast<int>(CeilDiv(int64_t{g->columns}, g->lines));
  const int64_t each = CeilDiv(int64_t{g->tiles}, int64_t{2} * sms),
                stage_depth = kBoxes * kBoxDepth, row = RoundUp(depth, stage_depth) * 2,
                needed = each * CeilDiv(depth, stage_depth);
  g->ring = static_cast<int>(RoundUp(static_cast<int64_t>(sizeof(Barriers)) + row, 1024));
  const int stage_bytes = kBoxes * g->lines * kLineBytes,
            behind = (kTileLines - g->lines) * kLineBytes;
  g->stages = static_cast<int>(
      std::min<int64_t>({needed, kMostStages, (kRoom - g->ring - behind) / stage_bytes}));
  return static_cast<unsigned>(CeilDiv(int64_t{g->tiles}, each));
}

template <int P>
void LaunchPacks(const OneRowArgs& args, InOrderRowArgs g, const Launch& launch) {
  constexpr int kMostRing = kRoom - kTileLines * kLineBytes * kBoxes * (kUnderWay + 1);
  static_assert(sizeof(Barriers) + kMostRowNormInOrder * 2 <= kMostRing / 1024 * 1024);
  const unsigned blocks = ShareTiles(args.depth, launch.sms, &g);
  const int64_t depth = args.depth;
  const CUtensorMap weight = MapOfBF16(reinterpret_cast<const std::byte*>(args.weight),
                                       {depth, g.columns, 1}, {depth, g.columns * depth}, g.lines);
  MR_CUDA(cudaFuncSetAttribute(InOrderRowKernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kRoom));
  Launch beside = launch;
  beside.one_row = true;
  const int bytes = g.ring + (g.stages * kBoxes * g.lines + kTileLines - g.lines) * kLineBytes;
  LaunchKernel(beside, blocks, kStageThreads, static_cast<size_t>(bytes), InOrderRowKernel<P>,
               weight, g);
}

// A dense row of bf16 at a multiple of 16 bytes, or none.
Rows RowsOf(const uint16_t* row, int64_t columns) {
  std::byte* const data = reinterpret_cast<std::byte*>(const_cast<uint16_t*>(row));
  return data == nullptr ? Rows{} : Rows{data, columns, true, true};
}

}  // namespace

void LaunchInOrderRow(const OneRowArgs& args, const Launch& launch) {
  const RowShape shape = RowShapeOf(args.depth, kNormPacks);
  static_assert(RowShapeOf(kMostRowNormInOrder, kNormPacks).warps * kWarp == kWarpgroup);
  InOrderRowArgs g;
  g.x = RowsOf(args.x, args.depth), g.residual = RowsOf(args.residual, args.depth);
  g.sum = RowsOf(args.sum, args.depth);
  g.norm_weight = RowsOf(args.norm_weight, args.depth);
  g.norm_bias = RowsOf(args.norm_bias, args.depth);
  g.bias = RowsOf(args.bias, args.units);
  g.out = {args.out, args.units, !args.out_f32, true};
  g.norm = {args.depth, 1.0 / static_cast<double>(args.depth), args.eps,
            args.norm == RowNorm::kLayer};
  g.warps = shape.warps;
  g.columns = args.units;
  g.gelu = args.finish == RowFinish::kGelu;
  g.constant = args.constant;
  switch (shape.packs) {
    case 1:
      return LaunchPacks<1>(args, g, launch);
    case 2:
      return LaunchPacks<2>(args, g, launch);
    case 3:
      return LaunchPacks<3>(args, g, launch);
    default:
      return LaunchPacks<4>(args, g, launch);
  }
}

}  // namespace millrace::cuda
