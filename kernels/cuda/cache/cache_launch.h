// The border between cache.cc and cache.cu.
#pragma once

#include <cstdint>

#include "kernels/cuda/divide.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// Elements of f32 or bf16, by strides in elements.
struct Heads {
  std::byte* data = nullptr;
  int64_t row_stride = 0, head_stride = 0;
};

// Where rows lie in a cache [pages, page_tokens, width].
struct CachePlaces {
  const int32_t *at = nullptr, *slots = nullptr, *pages = nullptr;
  std::byte* cache = nullptr;
  int64_t pages_of_sequence = 0, page_tokens = 0, width = 0;
};

// Of one dtype: table, positions (null: none) and out.
struct EmbedRowsArgs {
  const int32_t *tokens = nullptr, *at = nullptr;
  const std::byte *table = nullptr, *positions = nullptr;
  int64_t table_stride = 0, positions_stride = 0, out_stride = 0, columns = 0;
  bool table_bf16 = false, positions_bf16 = false, out_bf16 = false;
  std::byte* out = nullptr;
  int rows = 0;
};
void LaunchEmbedRows(const EmbedRowsArgs& args, const Launch& launch);

inline constexpr int kMostCachedDepth = 256;
struct CachedAttentionArgs {
  Heads q, out;
  const std::byte* x = nullptr;  // the rows' own keys and values
  int64_t x_stride = 0;          // elements
  CachePlaces places;
  int rows = 0, heads = 0, kv_heads = 0, depth = 0;  // depth <= kMostCachedDepth
  Divisor page_tokens, per_kv;                       // per_kv: heads that share a key/value head
  int64_t window = 0;
  float scale = 1;
};
// Rows to their places in the cache, which the two kernels here read everything from.
void LaunchCacheRows(const CachedAttentionArgs& args, bool bf16, const Launch& launch);
void LaunchCachedAttention(const CachedAttentionArgs& args, bool bf16, const Launch& launch);
// Both in one kernel, for bf16 where accesses of 16 bytes are possible: attention_rows.cu.
bool AttendsWide(const CachedAttentionArgs& args);
void LaunchAttendRows(const CachedAttentionArgs& args, const Launch& launch);
// For bf16 where most rows are successive ones of one sequence: attention_prompt.cu.
bool AttendsTiles(const CachedAttentionArgs& args);
void LaunchAttendPrompt(const CachedAttentionArgs& args, const Launch& launch);
// As LaunchAttendRows, where AttendsTiles, without a window: the bits of the training forward's
// kernel of tensor cores, which LaunchAttendPrompt has, too. attention_in_order.cu.
void LaunchAttendInOrder(const CachedAttentionArgs& args, const Launch& launch);
// Whether that is the faster one, whatever order is asked for: where rows keep the device busy, and
// four heads or more share each key that lies in shared memory. Weights are rounded to bf16 then.
bool SharesTiles(const CachedAttentionArgs& args, const Launch& launch);

// x, dt_raw, inputs and out of one dtype.
struct MambaConvRowsArgs {
  const std::byte *x = nullptr, *dt_raw = nullptr, *weight = nullptr, *bias = nullptr,
                  *dt_bias = nullptr;
  const int32_t *at = nullptr, *slots = nullptr;
  std::byte *inputs = nullptr, *out = nullptr;
  float* dt = nullptr;
  int64_t x_stride = 0, dt_raw_stride = 0, out_stride = 0;
  int rows = 0, channels = 0, taps = 0, heads = 0;
  float dt_min = 0, dt_max = 0;
  bool weight_bf16 = false, bias_bf16 = false, dt_bias_bf16 = false;
};
void LaunchMambaConvRows(const MambaConvRowsArgs& args, bool bf16, const Launch& launch);

// xbc and out of one dtype.
struct SsdScanRowsArgs {
  const std::byte *xbc = nullptr, *a_log = nullptr, *d = nullptr;
  const float* dt = nullptr;
  const int32_t *at = nullptr, *slots = nullptr;
  float* state = nullptr;
  std::byte* out = nullptr;
  int64_t xbc_stride = 0, out_stride = 0;
  int rows = 0, heads = 0, channels = 0, groups = 0, states = 0;
  bool a_log_bf16 = false, d_bf16 = false;
};
void LaunchSsdScanRows(const SsdScanRowsArgs& args, bool bf16, const Launch& launch);

}  // namespace millrace::cuda
