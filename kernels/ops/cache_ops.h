// Argument structs of the ops of inference: rows of sequences that keep caches. Form and letters as
// in model_ops.h.
//
// Rows     R rows are new tokens of sequences, each of its own or several of one in the order of
//          their positions. i32 [R] each, dense: `at` is a row's position in its sequence, `slots`
//          the slot of the sequence; -1: the row is nobody's. What ops make of such a row is finite
//          and read by nobody; they leave nothing of it in a state.
// Pages    Row s of `pages`, i32 [slots, P] dense, names the pages of the sequence in slot s: of
//          position t the cache has row t % page_tokens of page pages[s, t / page_tokens].
//          cache any [pages, page_tokens, W], dense. A row is written before any later op reads it;
//          what no sequence has written is never read.
// Errors   On the CPU Error(kInternal): a slot, a position or a page that does not exist. CUDA does
//          not look: the host checks what it writes there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/access.h"
#include "kernels/ops/mamba_ops.h"
#include "runtime/base/mesh.h"

namespace millrace {

// x = 0. x any dtype, contiguous.
template <class V>
struct ClearCacheOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "clear_cache";
  V x;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kWrite, "x");
  }
};

// What a rank keeps of a flat that is gathered strip by strip: of each of n shards of `pitch`
// elements its elements from `first` on. x[j,i] is element j pitch + first + i of the flat, and
// out[e] is element begin + e, where the strip has it. Elsewhere out is 0, or what it is where the
// op accumulates. One dtype, x [n,W] and out [m], dense.
struct KeepRangeAttrs {
  int64_t pitch = 0, first = 0;
  RankInt begin;
  Update update = Update::kOverwrite;
  bool operator==(const KeepRangeAttrs&) const = default;
};
template <class V>
struct KeepRangeOp : KeepRangeAttrs {
  using Attrs = KeepRangeAttrs;
  static constexpr const char* kName = "keep_range";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Updated{s.update}, "out");
  }
  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.begin, "begin");
  }
};

// f(element of x, element of out, how many) for each run of elements that an op keeps; `begin` is
// bound.
template <class F>
void ForEachKept(const KeepRangeAttrs& op, int64_t shards, int64_t width, int64_t kept, F&& f) {
  const int64_t begin = op.begin.value();
  for (int64_t j = 0; j < shards; ++j) {
    const int64_t at = j * op.pitch + op.first, from = std::max(at, begin),
                  to = std::min(at + width, begin + kept);
    if (from < to) f(j * width + from - at, from - begin, to - from);
  }
}

// out[r, :] = table[tokens[r], :] (+ positions[at[r], :]), of nobody's rows as of token 0 at 0.
// tokens, at i32 [R]; table any [Vp,C], positions any [T,C] optional, out any [R,C]. Bits are those
// of EmbedOp.
template <class V>
struct EmbedRowsOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "embed_rows";
  V tokens, at, table, positions, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.tokens, Access::kRead, "tokens");
    f(s.at, Access::kRead, "at");
    f(s.table, Access::kRead, "table");
    f(s.positions, Access::kRead, "positions");
    f(s.out, Access::kWrite, "out");
  }
};

// RopeOp's rotation of row r by the table's angle for at[r], in place.
// x any [R,H,D] strided, table f32 [T,D/2,2], at i32 [R].
template <class V>
struct RopeRowsOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "rope_rows";
  V x, at, table;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.at, Access::kRead, "at");
    f(s.table, Access::kRead, "table");
    f(s.x, Access::kAccumulate, "x");
  }
};

// What the rows of an op mostly are: one of each of many sequences, or many of one sequence. It
// decides how they are computed fastest, and not what they are but for rounding.
enum class RowsFrom { kManySequences, kOneSequence };

// AttentionOp of rows over cached keys and values. First each row of x is copied to its place in
// the cache, bit for bit; then row r sees positions [0, at[r]] of its sequence, or the last
// `window` of them. Nobody's rows of out are 0.
// q, out any [R,H,D] strided in dims 0 and 1; x [R, 2 Hkv D] of q's dtype, strided in dim 0: a
// row's key heads, then its value heads; cache of that dtype [pages, page_tokens, 2 Hkv D]. Rows of
// a sequence lie side by side and follow each other without a gap.
// Order    On the CPU each row has the bits that it has in a whole sequence of `length` positions,
//          whatever the rows beside it, their number and the pages. On CUDA it has those of an
//          AttentionOp where both are `in_order`.
struct CachedAttentionAttrs {
  float scale = 1;
  int64_t window = 0;
  int64_t kv_heads = 0;
  int64_t length = 0;  // positions of the training forward's sequences; at[r] < length
  RowsFrom rows_from = RowsFrom::kManySequences;
  bool in_order = false;
  bool operator==(const CachedAttentionAttrs&) const = default;
};
template <class V>
struct CachedAttentionOp : CachedAttentionAttrs {
  using Attrs = CachedAttentionAttrs;
  static constexpr const char* kName = "cached_attention";
  V q, x, at, slots, pages, cache, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.q, Access::kRead, "q");
    f(s.x, Access::kRead, "x");
    f(s.at, Access::kRead, "at");
    f(s.slots, Access::kRead, "slots");
    f(s.pages, Access::kRead, "pages");
    f(s.cache, Access::kAccumulate, "cache");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// MambaConvOp of rows: each is convolved with the rows of its sequence before it. x, out any
// [R,C]; dt_raw any [R,H]; dt f32 [R,H], dense; others as there. inputs x's dtype [slots,K,C],
// dense: of the sequence in a slot the rows of the last K positions, that of t at t % K. Rows of a
// sequence follow each other without a gap, from position 0 on. Nobody's out and dt are 0. Bits are
// those of MambaConvOp.
template <class V>
struct MambaConvRowsOp : MambaConvAttrs {
  using Attrs = MambaConvAttrs;
  static constexpr const char* kName = "mamba_conv_rows";
  V x, dt_raw, weight, bias, dt_bias, at, slots, inputs, out, dt;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.dt_raw, Access::kRead, "dt_raw");
    f(s.weight, Access::kRead, "weight");
    f(s.bias, Access::kRead, "bias");
    f(s.dt_bias, Access::kRead, "dt_bias");
    f(s.at, Access::kRead, "at");
    f(s.slots, Access::kRead, "slots");
    f(s.inputs, Access::kAccumulate, "inputs");
    f(s.out, Access::kWrite, "out");
    f(s.dt, Access::kWrite, "dt");
  }
};

// SsdScanOp of rows: of the sequence in a slot there is the state before a chunk, and the rows and
// steps of the chunk that is open. x|B|C of a row lie end to end: xbc any [R, H P + 2 G N], dt f32
// [R,H] dense, out any [R, H P], a_log, d any [H]. state f32 [slots,H,P,N]; rows xbc's dtype
// [slots, chunk, H P + 2 G N], steps f32 [slots,chunk,H]: that of position t at t % chunk. All
// dense. Rows of a sequence follow each other without a gap, from position 0 on, and none comes
// twice. Nobody's out is 0.
// Order    On the CPU as SsdScanOp's in sequences of `length` positions: a row is evaluated with
//          the chunk's products, and the state moves from chunk to chunk. On CUDA the recurrence:
//          the state moves from row to row, and the chunk's rows are not kept.
struct SsdScanRowsAttrs {
  int64_t groups = 0, states = 0;
  int64_t chunk = 128, length = 0;
  bool operator==(const SsdScanRowsAttrs&) const = default;
};
template <class V>
struct SsdScanRowsOp : SsdScanRowsAttrs {
  using Attrs = SsdScanRowsAttrs;
  static constexpr const char* kName = "ssd_scan_rows";
  V xbc, dt, a_log, d, at, slots, state, rows, steps, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.xbc, Access::kRead, "xbc");
    f(s.dt, Access::kRead, "dt");
    f(s.a_log, Access::kRead, "a_log");
    f(s.d, Access::kRead, "d");
    f(s.at, Access::kRead, "at");
    f(s.slots, Access::kRead, "slots");
    f(s.state, Access::kAccumulate, "state");
    f(s.rows, Access::kAccumulate, "rows");
    f(s.steps, Access::kAccumulate, "steps");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

}  // namespace millrace
