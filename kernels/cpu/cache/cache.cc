#include "kernels/cpu/cache/cache.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/rows.h"

namespace millrace::cpu {
namespace {

// Where rows of sequences lie in a cache.
class Places {
 public:
  Places(const TensorView& at, const TensorView& slots, const TensorView& pages,
         const TensorView& cache)
      : at_(at.as<int32_t>()),
        slots_(slots.as<int32_t>()),
        pages_(pages),
        cache_(cache),
        page_tokens_(cache.dim(1)) {
    for (const auto& [view, name] :
         {std::pair{&at, "at"}, {&slots, "slots"}, {&pages, "pages"}, {&cache, "cache"}})
      MR_CHECK((view == &cache || view->dtype() == DType::kI32) && view->layout.contiguous(),
               "{} is {}; i32 is expected, and the cache to be dense", name,
               ToString(view->layout));
    MR_CHECK_EQ(at.numel(), slots.numel(), "positions and slots of rows");
  }

  bool live(int64_t r) const { return slots_[r] >= 0; }
  int64_t at(int64_t r) const { return at_[r]; }
  int32_t slot(int64_t r) const { return slots_[r]; }
  // The cache's row of position t of the sequence in `slot`, as [.., W].
  Row RowOf(int32_t slot, int64_t t) const {
    MR_CHECK(slot < pages_.dim(0) && t >= 0 && t < pages_.dim(1) * page_tokens_,
             "position {} of slot {}, of {} slots with {} pages of {}", t, slot, pages_.dim(0),
             pages_.dim(1), page_tokens_);
    const int32_t page = pages_.as<int32_t>()[slot * pages_.dim(1) + t / page_tokens_];
    MR_CHECK(page >= 0 && page < cache_.dim(0), "page {} of {}", page, cache_.dim(0));
    return RowAt(cache_, page, t % page_tokens_);
  }

 private:
  const int32_t *at_, *slots_;
  const TensorView& pages_;
  const TensorView& cache_;
  int64_t page_tokens_;
};

// Consecutive rows [first, first + rows) of one sequence within one block of its queries.
struct Run {
  int64_t first, rows;
  int32_t slot;
  int64_t begin, block_rows;  // the block: positions [begin, begin + block_rows)

  int64_t keys() const { return begin + block_rows; }
};

template <class F>
void ForRuns(const Places& places, int64_t rows, int64_t length, F&& f) {
  const int64_t block = std::min(kAttentionRows, length);
  for (int64_t r = 0; r < rows;) {
    if (!places.live(r)) {
      ++r;
      continue;
    }
    const int64_t t = places.at(r), begin = t / block * block;
    MR_CHECK(t >= 0 && t < length, "cached_attention: position {} of {}", t, length);
    Run run{r, 1, places.slot(r), begin, std::min(block, length - begin)};
    while (r + run.rows < rows && places.slot(r + run.rows) == run.slot &&
           places.at(r + run.rows) == t + run.rows && t + run.rows < run.keys())
      ++run.rows;
    f(run);
    r += run.rows;
  }
}

// One head's keys or values of a sequence, [keys, D] from `column` on; zeros from `seen` on, which
// the rows of the run do not see.
void LoadKeys(const Places& places, const Run& run, int64_t seen, int64_t column, int64_t depth,
              float* to) {
  for (int64_t t = 0; t < seen; ++t, to += depth) {
    const float* from = Load(places.RowOf(run.slot, t), column, depth, to);
    if (from != to) std::copy_n(from, depth, to);
  }
  std::fill_n(to, (run.keys() - seen) * depth, 0.0f);
}

struct Buffers {
  float *scores, *q, *k, *v, *out;
};

// The rows of one query head, whose keys and values are loaded: products of the sizes that the
// block has in the training forward, with zeros in place of its other rows.
void AttendHead(const CachedAttentionOp<TensorView>& op, const Places& places, const Run& run,
                int64_t head, const Buffers& buffers) {
  const int64_t depth = op.q.dim(2), keys = run.keys();
  std::fill_n(buffers.q, run.block_rows * depth, 0.0f);
  const int64_t place = places.at(run.first) - run.begin;
  for (int64_t i = 0; i < run.rows; ++i) {
    float* const to = buffers.q + (place + i) * depth;
    const float* from = Load(RowAt(op.q, run.first + i, head), 0, depth, to);
    if (from != to) std::copy_n(from, depth, to);
  }
  Gemm(run.block_rows, keys, depth, op.scale, {buffers.q, depth}, {buffers.k, depth, true}, 0.0f,
       buffers.scores, keys);
  float inverse_sum[kAttentionRows] = {};
  for (int64_t i = place; i < place + run.rows; ++i)
    inverse_sum[i] =
        1.0f / ExpSeen(buffers.scores + i * keys, run.begin + i + 1, op.window, keys).sum;
  Gemm(run.block_rows, depth, keys, 1.0f, {buffers.scores, keys}, {buffers.v, depth}, 0.0f,
       buffers.out, depth);
  ScaleRows({buffers.out, depth}, run.block_rows, depth, inverse_sum);
  for (int64_t i = 0; i < run.rows; ++i)
    Store(RowAt(op.out, run.first + i, head), 0, depth, buffers.out + (place + i) * depth);
}

void CacheRows(const CachedAttentionOp<TensorView>& op, const Places& places) {
  const auto bytes = static_cast<size_t>(op.x.dim(1) * Bytes(op.x.dtype()));
  for (int64_t r = 0; r < op.x.dim(0); ++r)
    if (places.live(r))
      std::memcpy(places.RowOf(places.slot(r), places.at(r)).data, RowAt(op.x, r).data, bytes);
}

}  // namespace

void ClearCache(const ClearCacheOp<TensorView>& op, Stream&) {
  MR_CHECK(op.x.layout.contiguous(), "clear_cache: x is {}", ToString(op.x.layout));
  std::memset(op.x.data, 0, static_cast<size_t>(op.x.bytes()));
}

void KeepRange(const KeepRangeOp<TensorView>& op, Stream&) {
  MR_CHECK(op.x.layout.contiguous() && op.out.layout.contiguous() &&
               op.x.dtype() == op.out.dtype() && op.first + op.x.dim(1) <= op.pitch,
           "keep_range: x is {} from {} of {}, out is {}", ToString(op.x.layout), op.first,
           op.pitch, ToString(op.out.layout));
  const int64_t size = Bytes(op.x.dtype());
  if (op.update == Update::kOverwrite)
    std::memset(op.out.data, 0, static_cast<size_t>(op.out.bytes()));
  ForEachKept(op, op.x.dim(0), op.x.dim(1), op.out.numel(),
              [&](int64_t from, int64_t to, int64_t count) {
                std::memcpy(op.out.data + to * size, op.x.data + from * size,
                            static_cast<size_t>(count * size));
              });
}

void CachedAttention(const CachedAttentionOp<TensorView>& op, Stream&) {
  CheckFloat(op.q, "q");
  CheckFloat(op.out, "out");
  CheckFloat(op.cache, "cache");
  const int64_t rows = op.q.dim(0), heads = op.q.dim(1), depth = op.q.dim(2);
  MR_CHECK(op.kv_heads > 0 && heads % op.kv_heads == 0 &&
               op.cache.dim(2) == 2 * op.kv_heads * depth && op.out.dim(0) == rows &&
               op.out.dim(1) == heads && op.out.dim(2) == depth && op.at.numel() == rows,
           "cached_attention: q is {}, out {}, the cache {}, {} rows on {} key/value heads",
           ToString(op.q.layout), ToString(op.out.layout), ToString(op.cache.layout), op.at.numel(),
           op.kv_heads);
  MR_CHECK(op.x.dtype() == op.cache.dtype() && op.x.dim(0) == rows &&
               op.x.dim(1) == op.cache.dim(2) && (op.x.dim(1) <= 1 || op.x.stride(1) == 1),
           "cached_attention: x is {}, the cache {}", ToString(op.x.layout),
           ToString(op.cache.layout));
  MR_CHECK_LE(depth, kChunk, "cached_attention: head_dim");
  const Places places(op.at, op.slots, op.pages, op.cache);
  CacheRows(op, places);
  const int64_t block = std::min(kAttentionRows, op.length);
  Scratch scratch(op.scratch);
  Buffers buffers{};
  buffers.scores = scratch.Take(block * op.length);
  buffers.q = scratch.Take(block * depth);
  buffers.out = scratch.Take(block * depth);
  buffers.k = scratch.Take(op.length * depth);
  buffers.v = scratch.Take(op.length * depth);
  const float zeros[kChunk] = {};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads && !places.live(r); ++h)
      Store(RowAt(op.out, r, h), 0, depth, zeros);
  ForRuns(places, rows, op.length, [&](const Run& run) {
    const int64_t seen = places.at(run.first) + run.rows, group = heads / op.kv_heads;
    for (int64_t kv = 0; kv < op.kv_heads; ++kv) {
      LoadKeys(places, run, seen, kv * depth, depth, buffers.k);
      LoadKeys(places, run, seen, (op.kv_heads + kv) * depth, depth, buffers.v);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        AttendHead(op, places, run, h, buffers);
    }
  });
}

}  // namespace millrace::cpu
