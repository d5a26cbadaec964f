// CachedAttentionOp with bf16 heads of 64 or 128: a decode step reads each cached key and value
// once, and waits for nothing else. It caches the rows' own on its way. For one row it reads what
// earlier steps have cached before the kernel ahead has ended (cache.h).
#include <cooperative_groups.h>

#include <cmath>
#include <type_traits>

#include "kernels/cuda/cache/cache_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// What softmax over some positions has come to: the largest score, the sum of weights relative to
// it, and the weighted sum of values.
template <int N>
struct Part {
  float most = -INFINITY, total = 0, sum[N] = {};

  // By how much what was relative to `old` counts relative to the new largest score; of no
  // positions: 0.
  static __device__ __forceinline__ float Share(float old, float most) {
    return old == -INFINITY ? 0.0f : __expf(old - most);
  }
};

// Of `kQueries` neighbouring query heads that share a key/value head, in one row. kLanes lanes
// share a position, each has eight elements of its key and value; a warp takes 32 / kLanes at once.
// The cluster's kSplits blocks take every kSplits-th lot of positions, and the first joins their
// parts. All sums have a fixed order. kTurns: turns of kAhead lots whose keys and values are on
// their way at once, which changes no sum; where there are several, ahead of the wait.
template <int kLanes, int kQueries, int kSplits, int kTurns>
__global__ void __cluster_dims__(kSplits) __launch_bounds__(kThreads)
    AttendRowsKernel(const CachedAttentionArgs a) {
  // The first block's memory is there once all blocks are.
  if constexpr (kSplits > 1) asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
  constexpr bool kReadsEarly = kTurns > 1;
  if constexpr (!kReadsEarly) BeginKernel();
  constexpr int kDepth = kLanes * kPack, kGroups = kWarp / kLanes, kLot = kGroups * kWarps,
                kStep = kLot * kSplits, kAhead = kQueries > 2 ? 2 : 4;
  const int r = static_cast<int>(blockIdx.x) / kSplits,
            split = static_cast<int>(blockIdx.x) % kSplits,
            lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int per_kv = a.heads / a.kv_heads, blocks_of_kv = (per_kv + kQueries - 1) / kQueries;
  const int kv = static_cast<int>(blockIdx.y) / blocks_of_kv,
            head = static_cast<int>(blockIdx.y) % blocks_of_kv * kQueries,
            queries = min(kQueries, per_kv - head), first_head = kv * per_kv + head;
  const int slot = a.places.slots[r], t = a.places.at[r];
  int slot_before = r > 0 ? a.places.slots[r - 1] : -1;
  uint16_t* const out = reinterpret_cast<uint16_t*>(a.out.data) + r * a.out.row_stride +
                        first_head * a.out.head_stride;
  if (slot < 0) {  // of all blocks of the cluster
    if constexpr (kReadsEarly) BeginKernel();
    if (split > 0) return;
    for (int i = static_cast<int>(threadIdx.x); i < queries * kDepth; i += kThreads)
      out[i / kDepth * a.out.head_stride + i % kDepth] = 0;
    return;
  }
  const int column = lane % kLanes * kPack;
  float query[kQueries][kPack];
  Part<kPack> part[kQueries];
  const auto read_queries = [&] {
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      const uint16_t* const q = reinterpret_cast<const uint16_t*>(a.q.data) + r * a.q.row_stride +
                                (first_head + (j < queries ? j : 0)) * a.q.head_stride;
      ToFloats(*reinterpret_cast<const uint4*>(q + column), query[j]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) query[j][i] *= a.scale;
    }
  };
  if constexpr (!kReadsEarly) read_queries();
  // Positions from `own` on are rows of this op, which other blocks cache meanwhile: they are read
  // from x.
  int own = t;
  for (int before = r - 1; slot_before == slot; --own, --before)
    slot_before = before > 0 ? a.places.slots[before - 1] : -1;
  const uint16_t* const own_keys =
      reinterpret_cast<const uint16_t*>(a.x) + (r - t) * a.x_stride + kv * kDepth + column;
  const int32_t* const pages = a.places.pages + slot * a.places.pages_of_sequence;
  uint16_t* const keys = reinterpret_cast<uint16_t*>(a.places.cache) + kv * kDepth + column;
  const int64_t to_values = int64_t{a.kv_heads} * kDepth;
  const auto cached_at = [&](int u) {
    const uint32_t page = a.page_tokens.Quotient(static_cast<uint32_t>(u));
    const int64_t row = int64_t{pages[page]} * a.places.page_tokens +
                        (static_cast<uint32_t>(u) - page * a.page_tokens.divisor);
    return keys + row * a.places.width;
  };
  const int first = a.window > 0 && t >= a.window ? t - static_cast<int>(a.window) + 1 : 0;
  uint4 keys_of[kTurns][kAhead], values_of[kTurns][kAhead];
  // Of the turns from `begin` on, what is cached, the rows of this op, or both.
  const auto read = [&](int begin, auto cached, auto owned) {
    constexpr bool kCached = decltype(cached)::value, kOwned = decltype(owned)::value;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn)
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int u = begin + (turn * kAhead + n) * kStep + lane / kLanes;
        uint4 &key = keys_of[turn][n], &value = values_of[turn][n];
        if constexpr (kCached) key = value = make_uint4(0, 0, 0, 0);
        if (u > t || (u < own ? !kCached : !kOwned)) continue;
        const uint16_t* const at = u < own ? cached_at(u) : own_keys + u * a.x_stride;
        key = ReadOnce(at);
        value = ReadOnce(at + to_values);
      }
  };
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  int begin = first + (split * kWarps + warp) * kGroups;
  if constexpr (kReadsEarly) {
    read(begin, kYes, kNo);
    BeginKernel();
    read(begin, kNo, kYes);
    read_queries();
  }
  // The lanes of a warp take as many turns, whether or not there are positions for all.
  const auto take = [&](int begin, const uint4(&key)[kAhead], const uint4(&value)[kAhead]) {
    float score[kAhead][kQueries];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      float k[kPack];
      ToFloats(key[n], k);
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kPack; ++i) sum += query[j][i] * k[i];
#pragma unroll
        for (int other = kLanes / 2; other > 0; other /= 2)
          sum += __shfl_xor_sync(0xffffffffu, sum, other);
        score[n][j] = begin + n * kStep + lane / kLanes <= t ? sum : -INFINITY;
      }
    }
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      float most = part[j].most;
#pragma unroll
      for (int n = 0; n < kAhead; ++n) most = fmaxf(most, score[n][j]);
      if (most == -INFINITY) most = 0;  // no position yet: weights are 0 relative to anything
      const float keep = __expf(part[j].most - most);
      part[j].total *= keep;
#pragma unroll
      for (int i = 0; i < kPack; ++i) part[j].sum[i] *= keep;
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        score[n][j] = __expf(score[n][j] - most);
        part[j].total += score[n][j];
      }
      part[j].most = part[j].total > 0 ? most : -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      float v[kPack];
      ToFloats(value[n], v);
#pragma unroll
      for (int j = 0; j < kQueries; ++j)
#pragma unroll
        for (int i = 0; i < kPack; ++i) part[j].sum[i] += score[n][j] * v[i];
    }
  };
  while (begin <= t) {
    if constexpr (!kReadsEarly) read(begin, kYes, kYes);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn, begin += kStep * kAhead)
      if (begin <= t) take(begin, keys_of[turn], values_of[turn]);
    if constexpr (kReadsEarly) {
      if (begin > t) break;
      read(begin, kYes, kYes);
    }
  }
  if (split == 0 && head == 0 && threadIdx.x < kLanes) {
    uint16_t* const to = cached_at(t);
    const uint16_t* const from = own_keys + t * a.x_stride;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    *reinterpret_cast<uint4*>(to + to_values) = *reinterpret_cast<const uint4*>(from + to_values);
  }
  // A warp's positions, then the block's warps, then the cluster's blocks.
#pragma unroll
  for (int j = 0; j < kQueries; ++j)
#pragma unroll
    for (int other = kLanes; other < kWarp; other *= 2) {
      const float theirs = __shfl_xor_sync(0xffffffffu, part[j].most, other),
                  most = fmaxf(part[j].most, theirs),
                  own_share = Part<kPack>::Share(part[j].most, most),
                  share = Part<kPack>::Share(theirs, most);
      // A sum of two products that are rounded by themselves: both lanes have the same.
      const auto join = [&](float own) {
        const float others = __shfl_xor_sync(0xffffffffu, own, other);
        return __fadd_rn(__fmul_rn(own, own_share), __fmul_rn(others, share));
      };
      part[j].total = join(part[j].total);
#pragma unroll
      for (int i = 0; i < kPack; ++i) part[j].sum[i] = join(part[j].sum[i]);
      part[j].most = most;
    }
  __shared__ float most_of[kWarps][kQueries], total_of[kWarps][kQueries],
      sum_of[kWarps][kQueries][kDepth];
  // Of the cluster's blocks, in the first.
  __shared__ float block_most[kSplits][kQueries], block_total[kSplits][kQueries],
      block_sum[kSplits][kQueries][kDepth];
  if (lane < kLanes) {
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      if (lane == 0) most_of[warp][j] = part[j].most, total_of[warp][j] = part[j].total;
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum_of[warp][j][column + i] = part[j].sum[i];
    }
  }
  __syncthreads();
  const auto join = [](auto parts, const auto& most, const auto& total, const auto& sum, int j,
                       int d) {
    constexpr int kParts = decltype(parts)::value;
    Part<1> all;
#pragma unroll
    for (int p = 0; p < kParts; ++p) all.most = fmaxf(all.most, most[p][j]);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const float share = Part<1>::Share(most[p][j], all.most);
      all.total += total[p][j] * share;
      all.sum[0] += sum[p][j][d] * share;
    }
    return all;
  };
  const auto store = [&](const Part<1>& all, int j, int d) {
    out[j * a.out.head_stride + d] =
        static_cast<uint16_t>(PairOfBF16(all.sum[0] / all.total, 0.0f));
  };
  if constexpr (kSplits > 1) asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < queries * kDepth; i += kThreads) {
    const int j = i / kDepth, d = i % kDepth;
    const Part<1> all =
        join(std::integral_constant<int, kWarps>(), most_of, total_of, sum_of, j, d);
    if constexpr (kSplits == 1) {
      store(all, j, d);
    } else {
      const auto cluster = cooperative_groups::this_cluster();
      if (d == 0) {
        *cluster.map_shared_rank(&block_most[split][j], 0) = all.most;
        *cluster.map_shared_rank(&block_total[split][j], 0) = all.total;
      }
      *cluster.map_shared_rank(&block_sum[split][j][d], 0) = all.sum[0];
    }
  }
  if constexpr (kSplits > 1) {
    cooperative_groups::this_cluster().sync();
    if (split > 0) return;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < queries * kDepth; i += kThreads) {
      const int j = i / kDepth, d = i % kDepth;
      store(join(std::integral_constant<int, kSplits>(), block_most, block_total, block_sum, j, d),
            j, d);
    }
  }
}

template <int kLanes, int kQueries>
void LaunchSplits(const CachedAttentionArgs& args, const Launch& launch) {
  // One row's blocks are few: each has registers for eight lots.
  constexpr int kMostSplits = 8, kTurns = kQueries > 2 ? 4 : 2;
  const int blocks_of_kv = (args.heads / args.kv_heads + kQueries - 1) / kQueries;
  const int64_t blocks = int64_t{args.rows} * args.kv_heads * blocks_of_kv;
  const auto heads = static_cast<unsigned>(args.kv_heads * blocks_of_kv);
  // One row's few blocks fit beside those of the kernel before.
  Launch beside = launch;
  beside.one_row = args.rows == 1;
  if (beside.one_row && launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  // Where rows alone keep the device busy, nothing is left to join.
  const dim3 split(static_cast<unsigned>(args.rows * kMostSplits), heads);
  if (blocks >= 2 * int64_t{launch.sms})
    LaunchKernel(beside, dim3(static_cast<unsigned>(args.rows), heads), kThreads, 0,
                 AttendRowsKernel<kLanes, kQueries, 1, 1>, args);
  else if (args.rows > 1)
    LaunchKernel(beside, split, kThreads, 0, AttendRowsKernel<kLanes, kQueries, kMostSplits, 1>,
                 args);
  else
    LaunchKernel(beside, split, kThreads, 0,
                 AttendRowsKernel<kLanes, kQueries, kMostSplits, kTurns>, args);
}

template <int kLanes>
void LaunchQueries(const CachedAttentionArgs& args, const Launch& launch) {
  switch (args.heads / args.kv_heads) {
    case 1:
      return LaunchSplits<kLanes, 1>(args, launch);
    case 2:
      return LaunchSplits<kLanes, 2>(args, launch);
    default:
      return LaunchSplits<kLanes, 4>(args, launch);
  }
}

bool Wide(const std::byte* data, std::initializer_list<int64_t> strides) {
  bool wide = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (const int64_t stride : strides) wide &= stride % kPack == 0;
  return wide;
}

}  // namespace

bool AttendsWide(const CachedAttentionArgs& args) {
  return (args.depth == 64 || args.depth == 128) &&
         Wide(args.q.data, {args.q.row_stride, args.q.head_stride}) &&
         Wide(args.x, {args.x_stride}) && Wide(args.places.cache, {args.places.width});
}

void LaunchAttendRows(const CachedAttentionArgs& args, const Launch& launch) {
  if (args.depth == 64)
    LaunchQueries<64 / kPack>(args, launch);
  else
    LaunchQueries<128 / kPack>(args, launch);
}

}  // namespace millrace::cuda
