// A block has its share of each linear's units, a warp every sixteenth of these. Each warp has a
// ring of its own in shared memory, which it fills with segments of its lines in the order in which
// it multiplies them, on into the linears behind: they are constant. So memory is busy while blocks
// wait for each other, and, as the kernel begins beside the one before, for that.
#include <algorithm>

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

struct ChainArgs {
  // Each begins a line of the memory that arguments are read from.
  struct alignas(64) Linear : OneRowArgs {
    int each = 0, more = 0;  // units of a block; the first `more` have one more
    bool pair = false;       // a unit has two lines
  };
  Linear linears[kMostChain];
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

  __device__ __forceinline__ void Fill() {
    if (threadIdx.x % kWarp == 0) {
#pragma unroll 1
      for (int s = 0; s < a.segments; ++s) InitBarrier(barriers + 8 * s, 1);
      FenceNewBarriers();
      FenceSharedWrites();
    }
    __syncwarp();
    Open();
#pragma unroll 1
    for (int s = 0; s < a.segments; ++s) Fetch(s);
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

// Where all blocks meet. Each time the word's upper bit turns over, once all have added themselves.
struct Meeting {
  uint32_t* word;
  uint32_t before = 0;

  // By the block's first thread, behind a barrier of the block.
  __device__ __forceinline__ void Come() {
    const uint32_t add = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(add)
                 : "memory");
  }
  // Then: all have come, and what each has written before is seen, by the block behind a barrier.
  __device__ __forceinline__ void WaitForAll() const {
    uint32_t now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (((before ^ now) & 0x80000000u) == 0);
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
  ring.Fill();
  if (a.linears[0].norm != RowNorm::kNone) one_row::FetchNorm(a.linears[0], row);
  BeginKernel();
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
#endif  // others never launch it
}

}  // namespace

bool FitsRowChain(const OneRowArgs& linear) {
  return linear.constant && linear.units > 0 && linear.depth > 0 &&
         (linear.norm == RowNorm::kNone || linear.depth <= kMostRowNormInChain);
}

bool GainsAsRowChain(std::span<const OneRowArgs> linears) {
  int64_t bytes = 0;
  for (const OneRowArgs& l : linears)
    bytes += int64_t{l.units} * (IsPair(l.finish) ? 2 : 1) * l.depth * 2;
  return linears.size() >= 2 && bytes >= kLeastChainBytes;
}

bool HasRowChain(const cudaDeviceProp& device) {
  constexpr size_t kStatic = 2 << 10;  // of the kernel's own, at most
  return device.major >= 9 && device.cooperativeLaunch != 0 &&
         device.sharedMemPerBlockOptin >= kRoom + kStatic;
}

void LaunchRowChain(std::span<const OneRowArgs> linears, uint64_t* word, const Launch& launch) {
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
  const int bytes = args.row_bytes + kWarps * args.segments * kSegmentBytes;
  MR_CUDA(cudaFuncSetAttribute(RowChainKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRoom));
  Launch together = launch;
  together.cooperative = true;
  // Weights are on their way while the kernel before runs.
  if (launch.early == EarlyLaunch::kEnd) together.early = EarlyLaunch::kBegin;
  LaunchKernel(together, static_cast<unsigned>(launch.sms), kThreads, static_cast<size_t>(bytes),
               RowChainKernel, args);
}

}  // namespace millrace::cuda
