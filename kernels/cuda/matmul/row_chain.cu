// A block has its share of each linear's units, a warp every sixteenth of these. Each warp has a
// ring of its own in shared memory, which it fills with segments of its lines in the order in which
// it multiplies them, on into the linears behind: they are constant. So memory is busy while blocks
// wait for each other, and, as the kernel begins beside the one before, for that.
//
// Ahead of a ring, weights come to the second cache: what lies behind the rings while the kernel
// before runs, and the next chain's first ones when one of a block's warps has done. In between it
// costs more than it gains, as blocks then wait longer for each other's results
// (tools/bench/HISTORY.md).
#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/cuda/matmul/chain_lines.h"
#include "kernels/cuda/matmul/one_row.cuh"
#include "kernels/cuda/matmul/row_chain.h"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

using one_row::ColumnOf;

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kRegisters = 80;  // so that attention of one row has registers beside a block
constexpr int kSegment = 1024;  // elements of a line that come in one copy
constexpr int kSegmentBytes = kSegment * 2, kSegmentPacks = kSegment / kPack;
constexpr int kMostSegments = 8;  // of a ring
constexpr int kRoom = 216 << 10;  // of a block, for the row and the rings
// Of chains with less weights than these what follows gains (Llama 1B, 2 %); of more they take
// longer (Llama 8B, 1 %).
constexpr int64_t kFetchingBytes = int64_t{256} << 20;
constexpr int kEarlySegments = 2;  // of a ring that are asked for while the kernel before runs
// Of a block, to the second cache: behind the rings' first filling, and of the next chain.
constexpr int64_t kEarlyBytes = 32 << 10, kNextBytes = 160 << 10;

constexpr int kMostLines = 6;  // runs of them

struct ChainArgs {
  // Each begins a line of the memory that arguments are read from.
  struct alignas(64) Linear : OneRowArgs {
    int each = 0, more = 0;  // units of a block; the first `more` have one more
    bool pair = false;       // a unit has two lines
  };
  Linear linears[kMostChain];
  ChainLines lines[kMostLines];  // of this chain, then of the next
  int own_lines = 0, all_lines = 0;
  int early = 0;  // segments of a ring that are asked for while the kernel before runs
  uint32_t* word = nullptr;
  int count = 0;
  int segments = 0;   // of a ring
  int row_bytes = 0;  // of a block's shared memory; the rings follow
};

bool IsPair(RowFinish finish) {
  return finish == RowFinish::kSwiglu || finish == RowFinish::kRotate;
}

// Units of this warp: from the first on every kWarps-th one.
struct Units {
  int next, end;
  __device__ __forceinline__ explicit Units(const ChainArgs::Linear& l) {
    const int block = static_cast<int>(blockIdx.x);
    next = block * l.each + min(block, l.more) + static_cast<int>(threadIdx.x) / kWarp;
    end = (block + 1) * l.each + min(block + 1, l.more);
  }
};

// Read once a step: what else is in the second cache stays there.
__device__ __forceinline__ void CopyOnce(uint32_t shared, const void* from, uint32_t bytes,
                                         uint32_t barrier) {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;"
      :
      : "r"(shared), "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// A warp's ring, and what it fetches next. Lines of a pair come in turn, segment by segment.
struct Ring {
  const ChainArgs& a;
  uint32_t memory, barriers;
  int slot = 0;
  uint32_t parity = 0;
  // Of the copy that is next.
  int linear = 0, at = 0;
  bool second = false;
  Units units;
  const uint16_t* line = nullptr;

  __device__ __forceinline__ Ring(const ChainArgs& args, uint32_t ring, uint32_t full)
      : a(args), memory(ring), barriers(full), units(args.linears[0]) {}

  __device__ __forceinline__ void Begin() {
    if (threadIdx.x % kWarp == 0) {
#pragma unroll 1
      for (int s = 0; s < a.segments; ++s) InitBarrier(barriers + 8 * s, 1);
      FenceNewBarriers();
      FenceSharedWrites();
    }
    __syncwarp();
    Open();
  }
  __device__ __forceinline__ void Fill(int begin, int end) {
#pragma unroll 1
    for (int s = begin; s < end; ++s) Fetch(s);
  }
  // Until the segment of `slot` is there.
  __device__ __forceinline__ void Wait() const { WaitFor(barriers + 8 * slot, parity); }
  // By the whole warp, which has read it: the copy that comes there is issued behind.
  __device__ __forceinline__ void GiveBack() {
    __syncwarp();
    Fetch(slot);
    if (++slot == a.segments) slot = 0, parity ^= 1;
  }

 private:
  __device__ __forceinline__ void Open() {
    at = 0, second = false;
    while (linear < a.count) {
      const ChainArgs::Linear& l = a.linears[linear];
      if (units.next < units.end) {
        line = l.weight + int64_t{ColumnOf(l, l.finish, units.next)} * l.depth;
        return;
      }
      if (++linear < a.count) units = Units(a.linears[linear]);
    }
  }
  __device__ __forceinline__ void Fetch(int to) {
    if (linear >= a.count) return;
    const ChainArgs::Linear& l = a.linears[linear];
    const uint32_t bytes = static_cast<uint32_t>(min(kSegment, l.depth - at)) * 2;
    if (IsElected()) {
      ArriveAndExpect(barriers + 8 * to, bytes);
      CopyOnce(memory + to * kSegmentBytes, line + (second ? int64_t{l.gap} * l.depth : 0) + at,
               bytes, barriers + 8 * to);
    }
    if (l.pair && !second) {
      second = true;
      return;
    }
    second = false, at += kSegment;
    if (at < l.depth) return;
    units.next += kWarps;
    Open();
  }
};

// This block's part of [begin, end) of the lines, to the second cache.
__device__ __forceinline__ void FetchLines(const ChainArgs& a, int begin, int end) {
  const int block = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const ChainLines& l = a.lines[i];
    const int count = l.CountOf(block);
    if (count <= 0) continue;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :
                 : "l"(l.data + l.BeginOf(block)), "r"(count * l.line_bytes)
                 : "memory");
  }
}

// Where all blocks meet. Each time the word's upper bit turns over, once all have added themselves.
struct Meeting {
  uint32_t* word;
  uint32_t before = 0, added = 0;

  // By the block's first thread, behind a barrier of the block.
  __device__ __forceinline__ void Come() {
    added = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(added)
                 : "memory");
  }
  // Then: all have come, and what each has written before is seen, by the block behind a barrier.
  __device__ __forceinline__ void WaitForAll() const {
    uint32_t now = before + added;  // the last to come need not ask
    while (((before ^ now) & 0x80000000u) == 0)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  }
};

// FormRow of what is taken as it is, by the whole block.
__device__ __forceinline__ void CopyRow(const OneRowArgs& a, uint4* row) {
  constexpr int kReads = kMostRowDepth / kPack / kThreads;  // of a thread, all on their way at once
  const int packs = a.depth / kPack, thread = static_cast<int>(threadIdx.x);
  uint4 read[kReads];
#pragma unroll
  for (int i = 0; i < kReads; ++i)
    if (thread + i * kThreads < packs)
      read[i] = one_row::ReadPack<true>(a.x + (thread + i * kThreads) * kPack);
#pragma unroll
  for (int i = 0; i < kReads; ++i)
    if (thread + i * kThreads < packs) row[thread + i * kThreads] = read[i];
}

// What a unit's end needs, read ahead of its product.
struct UnitEnd {
  float bias[2] = {};
  float2 turn{};
  __device__ __forceinline__ void Read(const ChainArgs::Linear& a, int unit, int end,
                                       int64_t position) {
    if (unit >= end) return;
    if (a.bias != nullptr) {
      const int column = ColumnOf(a, a.finish, unit);
      bias[0] = one_row::OfBF16(a.bias[column]);
      if (a.pair) bias[1] = one_row::OfBF16(a.bias[column + a.gap]);
    }
    if (a.finish == RowFinish::kRotate)
      turn = reinterpret_cast<const float2*>(a.table)[position * a.gap + unit % a.gap];
  }
};

// sum += the products of a segment, of `packs` that the row has left: pass by pass, as one_row.cu.
__device__ __forceinline__ void Multiply(const uint4* row, const uint4* segment, int packs,
                                         float* sum) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto pass = [&](const uint4& of_row, const uint4& of_line) {
    float x[kPack], w[kPack];
    ToFloats(of_row, x);
    ToFloats(of_line, w);
#pragma unroll
    for (int i = 0; i < kPack; ++i) *sum = __fmaf_rn(x[i], w[i], *sum);
  };
  if (packs >= kSegmentPacks) {
#pragma unroll
    for (int p = lane; p < kSegmentPacks; p += kWarp) pass(row[p], segment[p]);
  } else {
    // Lanes beyond the row multiply its last pack by zeros there, too: an infinity is in all sums.
#pragma unroll 1
    for (int p = lane; p - lane < packs; p += kWarp)
      pass(row[min(p, packs - 1)], p < packs ? segment[p] : make_uint4(0, 0, 0, 0));
  }
}

// By the first lane.
__device__ __forceinline__ void StoreUnit(const OneRowArgs& a, int unit, const float (&sum)[2],
                                          float2 turn) {
  const int column = ColumnOf(a, a.finish, unit);
  const float one[1] = {sum[0]};
  switch (a.finish) {
    case RowFinish::kNone:
      return one_row::StoreUnit<RowFinish::kNone>(a, unit, column, one, turn);
    case RowFinish::kGelu:
      return one_row::StoreUnit<RowFinish::kGelu>(a, unit, column, one, turn);
    case RowFinish::kSwiglu:
      return one_row::StoreUnit<RowFinish::kSwiglu>(a, unit, column, sum, turn);
    case RowFinish::kRotate:
      return one_row::StoreUnit<RowFinish::kRotate>(a, unit, column, sum, turn);
  }
}

__global__ void __maxnreg__(kRegisters) RowChainKernel(const __grid_constant__ ChainArgs a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ uint64_t full[kWarps][kMostSegments];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  uint4* const row = reinterpret_cast<uint4*>(memory);
  const std::byte* const segments = memory + a.row_bytes + warp * a.segments * kSegmentBytes;
  Ring ring(a, static_cast<uint32_t>(__cvta_generic_to_shared(segments)),
            static_cast<uint32_t>(__cvta_generic_to_shared(full[warp])));
  ring.Begin();
  ring.Fill(0, a.early);
  const bool fetches = threadIdx.x == kThreads - kWarp;  // in a warp that forms no norm
  if (fetches) FetchLines(a, 0, a.own_lines);
  if (a.linears[0].norm != RowNorm::kNone) one_row::FetchNorm(a.linears[0], row);
  BeginKernel();
  ring.Fill(a.early, a.segments);
#pragma unroll 1
  for (int i = 0; i < a.count; ++i) {
    const ChainArgs::Linear& l = a.linears[i];
    Meeting meeting{a.word};
    if (i > 0) {
      __syncthreads();  // the row before is read, and what came of it is stored
      if (threadIdx.x == 0) meeting.Come();
      if (l.norm != RowNorm::kNone) one_row::FetchNorm(l, row);
    }
    Units units(l);
    UnitEnd end;
    const int64_t position = l.finish == RowFinish::kRotate ? l.at[0] : 0;
    end.Read(l, units.next, units.end, position);
    if (i > 0) {
      if (threadIdx.x == 0) meeting.WaitForAll();
      __syncthreads();
    }
    if (l.norm == RowNorm::kNone && l.residual == nullptr)
      CopyRow(l, row);
    else
      one_row::FormRow<true>(l, row);
    __syncthreads();
    const int packs = l.depth / kPack;
#pragma unroll 1
    for (; units.next < units.end; units.next += kWarps) {
      float sum[2] = {};
#pragma unroll 1
      for (int at = 0; at < packs; at += kSegmentPacks) {
        const auto multiply = [&](float* of) {
          const std::byte* const segment = segments + ring.slot * kSegmentBytes;
          ring.Wait();
          Multiply(row + at, reinterpret_cast<const uint4*>(segment), packs - at, of);
          ring.GiveBack();
        };
        multiply(&sum[0]);
        if (l.pair) multiply(&sum[1]);
      }
      sum[0] = __fadd_rn(WarpSum(sum[0]), end.bias[0]);
      if (l.pair) sum[1] = __fadd_rn(WarpSum(sum[1]), end.bias[1]);
      if (lane == 0) StoreUnit(l, units.next, sum, end.turn);
      end.Read(l, units.next + kWarps, units.end, position);
    }
  }
  if (fetches) FetchLines(a, a.own_lines, a.all_lines);
#endif  // others never launch it
}

int64_t BytesOf(std::span<const OneRowArgs> linears) {
  int64_t bytes = 0;
  for (const OneRowArgs& l : linears)
    bytes += int64_t{l.units} * (IsPair(l.finish) ? 2 : 1) * l.depth * 2;
  return bytes;
}

ChainWeights WeightsOf(const OneRowArgs& l) {
  return {.data = reinterpret_cast<const std::byte*>(l.weight),
          .units = l.units,
          .line_bytes = l.depth * 2,
          .gap_bytes = IsPair(l.finish) ? int64_t{l.gap} * l.depth * 2 : 0,
          .scattered = l.finish == RowFinish::kRotate};
}

}  // namespace

bool FitsRowChain(const OneRowArgs& linear) {
  return linear.constant && linear.units > 0 && linear.depth > 0 &&
         (linear.norm == RowNorm::kNone || linear.depth <= kMostRowNormInChain);
}

bool GainsAsRowChain(std::span<const OneRowArgs> linears) {
  return linears.size() >= 2 && BytesOf(linears) >= kLeastChainBytes;
}

bool HasRowChain(const cudaDeviceProp& device) {
  constexpr size_t kStatic = 2 << 10;  // of the kernel's own, at most
  return device.major >= 9 && device.cooperativeLaunch != 0 &&
         device.sharedMemPerBlockOptin >= kRoom + kStatic;
}

void LaunchRowChain(std::span<const OneRowArgs> linears, std::span<const OneRowArgs> next,
                    uint64_t* word, const Launch& launch) {
  ChainArgs args;
  args.word = reinterpret_cast<uint32_t*>(word);
  args.count = static_cast<int>(linears.size());
  int64_t row = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    ChainArgs::Linear& l = args.linears[i];
    static_cast<OneRowArgs&>(l) = linears[i];
    l.each = l.units / launch.sms, l.more = l.units % launch.sms;
    l.pair = IsPair(l.finish);
    const int64_t lines = l.norm == RowNorm::kNone ? 1 : l.norm_bias == nullptr ? 2 : 3;
    row = std::max(row, lines * l.depth * 2);
  }
  args.row_bytes = static_cast<int>(RoundUp(row, 128));
  args.segments = std::min(kMostSegments, (kRoom - args.row_bytes) / (kWarps * kSegmentBytes));
  const int rings = kWarps * args.segments * kSegmentBytes, bytes = args.row_bytes + rings;
  args.early = args.segments;
  if (BytesOf(linears) < kFetchingBytes) {
    args.early = std::min(kEarlySegments, args.segments);
    std::vector<ChainWeights> own, behind;
    std::transform(linears.begin(), linears.end(), std::back_inserter(own), WeightsOf);
    std::transform(next.begin(), next.end(), std::back_inserter(behind), WeightsOf);
    const std::span<ChainLines> lines(args.lines);
    args.own_lines = LinesOf(own, rings, kEarlyBytes, launch.sms, lines);
    const std::span<ChainLines> rest = lines.subspan(static_cast<size_t>(args.own_lines));
    args.all_lines = args.own_lines + LinesOf(behind, 0, kNextBytes, launch.sms, rest);
  }
  MR_CUDA(cudaFuncSetAttribute(RowChainKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRoom));
  Launch together = launch;
  together.cooperative = true;
  // Weights are on their way while the kernel before runs.
  if (launch.early == EarlyLaunch::kEnd) together.early = EarlyLaunch::kBegin;
  LaunchKernel(together, static_cast<unsigned>(launch.sms), kThreads, static_cast<size_t>(bytes),
               RowChainKernel, args);
}

}  // namespace millrace::cuda
