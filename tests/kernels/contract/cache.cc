// Rows of sequences that keep caches: what is placed has the bits of the op for whole sequences,
// pages lie in any order, nobody's rows leave nothing, and what no sequence wrote is never read
// (it is NaN here).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Rows of `sequences` sequences, in one op: several of each in the order of their positions, some
// nobody's.
struct Rows {
  TensorView tokens, at, slots;
  struct Of {
    int64_t sequence = -1, position = 0;  // -1: nobody's
  };
  std::vector<Of> of;
};

void SetInt(const TensorView& view, int64_t i, int64_t value) {
  view.as<int32_t>()[i] = static_cast<int32_t>(value);
}

// The next rows of each sequence, of which `done` are there already: `most` at most.
Rows NextRows(Memory& memory, Random& random, int64_t length, std::vector<int64_t>& done,
              int64_t most = 70) {
  Rows rows;
  for (size_t s = 0; s < done.size(); ++s) {
    if (Flip(random)) rows.of.push_back({});
    for (int64_t n = std::min(Pick(random, 0, most), length - done[s]); n > 0; --n)
      rows.of.push_back({static_cast<int64_t>(s), done[s]++});
  }
  const auto count = std::ssize(rows.of);
  rows.tokens = memory.New(DType::kI32, {count});
  rows.at = memory.New(DType::kI32, {count});
  rows.slots = memory.New(DType::kI32, {count});
  for (int64_t r = 0; r < count; ++r) {
    const Rows::Of& of = rows.of[static_cast<size_t>(r)];
    SetInt(rows.at, r, of.position);
    // Slots are the sequences, the other way round.
    SetInt(rows.slots, r, of.sequence < 0 ? -1 : std::ssize(done) - 1 - of.sequence);
    SetInt(rows.tokens, r, of.sequence < 0 ? -1 : (of.sequence * 31 + of.position * 7) % 13);
  }
  return rows;
}

// [slots, pages of a sequence], dealt from all pages in random order.
TensorView DealPages(Memory& memory, Random& random, int64_t slots, int64_t each, int64_t pages) {
  std::vector<int32_t> all(static_cast<size_t>(pages));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  const TensorView dealt = memory.New(DType::kI32, {slots, each});
  std::copy_n(all.begin(), slots * each, dealt.as<int32_t>());
  return dealt;
}

// Of weights that are rounded to bf16 before they multiply values, relative: on GPUs, of rows of
// one sequence (attention_prompt.cu), and of many rows of which four heads share a key (SharesTiles
// of cache_launch.h).
double RoundingOf(const Subject& subject, const CachedAttentionOp<TensorView>& op) {
  const bool shares = op.q.dim(1) >= 4 * op.kv_heads && op.q.dim(0) * op.kv_heads >= 128 &&
                      op.window == 0 && (op.q.dim(2) == 64 || op.q.dim(2) == 128);
  return subject.backend == Backend::kCuda && op.q.dtype() == DType::kBF16 &&
                 (op.rows_from == RowsFrom::kOneSequence || shares)
             ? 0x1p-9
             : 0;
}

// What attention over whole sequences is, of the elements of a head, with a bound: of scores as in
// attention.cc, where tensor cores may form them; exponentials may be the hardware's, within
// 2 + |x| units of 2^-22; weights are off by `rounding`.
Reference Attended(const TensorView& qkv, const CachedAttentionOp<TensorView>& op, int64_t heads,
                   int64_t sequence, int64_t t, int64_t h, double rounding) {
  const int64_t depth = op.q.dim(2), kv = h / (heads / op.kv_heads);
  const int64_t first = op.window > 0 ? std::max<int64_t>(0, t - op.window + 1) : 0;
  std::vector<double> scores;
  double error = 0, most = -1e300, least = 1e300;
  for (int64_t u = first; u <= t; ++u) {
    SumOf sum;
    for (int64_t i = 0; i < depth; ++i)
      sum.Add(Get(qkv, sequence, t, h * depth + i) *
              Get(qkv, sequence, u, (heads + kv) * depth + i));
    scores.push_back(op.scale * sum.value);
    error = std::max(error, op.scale * sum.bound(4) * (rounding > 0 ? 8 : 1));
    most = std::max(most, scores.back()), least = std::min(least, scores.back());
  }
  const double relative = 2 * error + (2 * static_cast<double>(scores.size()) + 8) * kU +
                          4 * (2 + most - least) * 0x1p-22 + rounding / 2;
  double weights = 0;
  for (double& score : scores) weights += score = std::exp(score - most);
  Reference reference;
  for (int64_t d = 0; d < depth; ++d) {
    double value = 0, magnitude = 0;
    for (int64_t u = first; u <= t; ++u) {
      const double term = scores[static_cast<size_t>(u - first)] *
                          Get(qkv, sequence, u, (heads + op.kv_heads + kv) * depth + d);
      value += term, magnitude += std::abs(term);
    }
    reference.push_back({value / weights, 2 * relative * magnitude / weights});
  }
  return reference;
}

struct Case {
  int64_t sequences, length, heads, kv_heads, depth, page_tokens;
  DType dtype;
  RowsFrom rows_from = RowsFrom::kManySequences;
  int64_t most_rows = 70;  // of a sequence in a call
};

Case PickCase(Random& random, int repeat) {
  constexpr int64_t kLengths[] = {64, 65, 130, 63, 1}, kDepths[] = {2, 8, 16, 34, 64, 128};
  const int64_t kv_heads = Pick(random, 1, 2);
  return {Pick(random, 1, 4),
          repeat < 5 ? kLengths[repeat] : Pick(random, 1, 40),
          kv_heads * Pick(random, 1, 6),
          kv_heads,
          kDepths[Pick(random, 0, 5)],
          Pick(random, 1, 20),
          PickFloat(random),
          Flip(random) ? RowsFrom::kManySequences : RowsFrom::kOneSequence};
}

// Rows [R, width] of the sequences' [S,T,width], in the order of `rows`; nobody's are zero.
TensorView Gathered(Memory& memory, const TensorView& of, const Rows& rows, Strides strides) {
  const TensorView x = memory.New(of.dtype(), {std::ssize(rows.of), of.dim(2)}, strides);
  ForEach(x.layout, [&](const Index& i) {
    const Rows::Of& row = rows.of[static_cast<size_t>(i[0])];
    Set(x, i, row.sequence < 0 ? 0 : Get(of, row.sequence, row.position, i[1]));
  });
  return x;
}

TensorView HeadsOf(const TensorView& rows, int64_t first, int64_t heads, int64_t depth) {
  TensorView view = rows;
  view.data += first * depth * Bytes(rows.dtype());
  view.layout = DenseLayout(rows.dtype(), {rows.dim(0), heads, depth});
  view.layout.strides = {rows.stride(0), depth, 1};
  return view;
}

// Attention of the backend over the whole sequences: [S,T,H*D].
TensorView Whole(const Subject& subject, Memory& memory, const TensorView& qkv, const Case& c,
                 const CachedAttentionOp<TensorView>& like) {
  AttentionOp<TensorView> op{};
  op.scale = like.scale, op.window = like.window;
  const auto heads = [&](const TensorView& rows, int64_t first, int64_t count) {
    TensorView view = rows;
    view.data += first * c.depth * Bytes(rows.dtype());
    view.layout = DenseLayout(rows.dtype(), {c.sequences, c.length, count, c.depth});
    view.layout.strides = {rows.stride(0), rows.stride(1), c.depth, 1};
    return view;
  };
  op.q = heads(qkv, 0, c.heads);
  op.k = heads(qkv, c.heads, c.kv_heads);
  op.v = heads(qkv, c.heads + c.kv_heads, c.kv_heads);
  const TensorView out = memory.New(c.dtype, {c.sequences, c.length, c.heads * c.depth});
  op.out = heads(out, 0, c.heads);
  Run(subject, memory, subject.table.attention, op);
  return out;
}

}  // namespace

namespace {

// The cache behind the op: what it was, and the rows at their places, bit for bit.
TensorView Cached(Memory& memory, const CachedAttentionOp<TensorView>& op, const TensorView& qkv,
                  const Rows& rows) {
  const TensorView cached = memory.NewLike(op.cache);
  std::memcpy(cached.data, op.cache.data, static_cast<size_t>(op.cache.bytes()));
  const int64_t page_tokens = op.cache.dim(1), width = op.cache.dim(2);
  for (size_t r = 0; r < rows.of.size(); ++r) {
    const Rows::Of& of = rows.of[r];
    if (of.sequence < 0) continue;
    const int64_t slot = rows.slots.as<int32_t>()[r],
                  page = op.pages.as<int32_t>()[slot * op.pages.dim(1) + of.position / page_tokens];
    for (int64_t c = 0; c < width; ++c)
      Set(cached, {page, of.position % page_tokens, c},
          Get(qkv, of.sequence, of.position, qkv.dim(2) - width + c));
  }
  return cached;
}

// The rows of a few sequences, some at a time.
void AttendInSteps(const Subject& subject, Random& random, const Case& c) {
  CAPTURE(c.sequences, c.length, c.heads, c.kv_heads, c.depth, c.page_tokens, Name(c.dtype),
          static_cast<int>(c.rows_from));
  Memory memory;
  const int64_t each = (c.length + c.page_tokens - 1) / c.page_tokens,
                pages = c.sequences * each + Pick(random, 0, 5),
                width = (c.heads + 2 * c.kv_heads) * c.depth;
  const TensorView qkv = memory.NewRandom(random, c.dtype, {c.sequences, c.length, width});
  CachedAttentionOp<TensorView> op{};
  op.scale = Flip(random) ? 0.3f : 2.0f;
  op.window = Flip(random) ? 0 : Pick(random, 1, 70);
  op.kv_heads = c.kv_heads, op.length = c.length, op.rows_from = c.rows_from;
  op.pages = DealPages(memory, random, c.sequences, each, pages);
  op.cache = memory.New(c.dtype, {pages, c.page_tokens, 2 * c.kv_heads * c.depth});
  // The CPU's bits are those of whole sequences.
  TensorView whole;
  std::vector<int64_t> done(static_cast<size_t>(c.sequences));
  for (int step = 0; step < 4; ++step) {
    const Rows rows = NextRows(memory, random, c.length, done, c.most_rows);
    if (rows.of.empty()) continue;
    // Of rows that are not dense, accesses are narrow.
    const TensorView x = Gathered(memory, qkv, rows, PickRowStrides(random));
    op.at = rows.at, op.slots = rows.slots;
    op.x = x;
    op.x.data += c.heads * c.depth * Bytes(c.dtype);
    op.x.layout.dims[1] = 2 * c.kv_heads * c.depth;
    op.q = HeadsOf(x, 0, c.heads, c.depth);
    const TensorView out = memory.New(c.dtype, {std::ssize(rows.of), c.heads * c.depth});
    op.out = HeadsOf(out, 0, c.heads, c.depth);
    if (!whole) whole = Whole(subject, memory, qkv, c, op);
    const TensorView cached = Cached(memory, op, qkv, rows);
    Run(subject, memory, subject.table.cached_attention, op);
    CHECK(SameBits(op.cache, cached));
    Reference reference;
    for (const Rows::Of& of : rows.of)
      for (int64_t h = 0; h < c.heads; ++h) {
        const Reference head = of.sequence < 0 ? Reference(static_cast<size_t>(c.depth))
                                               : Attended(qkv, op, c.heads, of.sequence,
                                                          of.position, h, RoundingOf(subject, op));
        reference.insert(reference.end(), head.begin(), head.end());
      }
    CheckNear(op.out, reference, "cached attention");
    if (subject.backend != Backend::kCpu) continue;
    int64_t other_bits = 0;
    ForEach(op.out.layout, [&](const Index& i) {
      const Rows::Of& of = rows.of[static_cast<size_t>(i[0])];
      other_bits += of.sequence >= 0 &&
                    Get(op.out, i) != Get(whole, of.sequence, of.position, i[1] * c.depth + i[2]);
    });
    CHECK(other_bits == 0);
  }
}

}  // namespace

void CachedAttentionContract(const Subject& subject) {
  Random random(90);
  for (int repeat = 0; repeat < 25; ++repeat)
    AttendInSteps(subject, random, PickCase(random, repeat));
  // Longer prompts, cut at places that are no border of a tile of queries, of keys or of a page;
  // one, two, four and eight query heads that share a key/value head.
  constexpr RowsFrom kOne = RowsFrom::kOneSequence;
  for (const Case& c : {Case{1, 333, 1, 1, 64, 16, DType::kBF16, kOne, 200},
                        Case{1, 200, 8, 1, 64, 7, DType::kBF16, kOne, 99},
                        Case{2, 150, 4, 1, 128, 64, DType::kBF16, kOne, 120},
                        Case{1, 257, 2, 2, 128, 1, DType::kBF16, kOne, 129},
                        Case{3, 100, 4, 2, 64, 5, DType::kBF16, kOne, 65},
                        Case{1, 140, 4, 1, 64, 128, DType::kF32, kOne, 77}})
    AttendInSteps(subject, random, c);
}

// A flat of `shards` shards in strips, of which `kept` elements from `begin` on are kept.
void KeepRangeContract(const Subject& subject) {
  Memory memory;
  Random random(23);
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t shards = Pick(random, 1, 5), pitch = Pick(random, 1, 50),
                  width = Pick(random, 1, pitch), all = shards * pitch,
                  begin = Pick(random, 0, all - 1), kept = Pick(random, 1, all);
    const TensorView flat = memory.NewRandom(random, PickFloat(random), {shards, pitch});
    KeepRangeOp<TensorView> op{};
    op.pitch = pitch;
    op.begin = begin;
    op.out = memory.NewRandom(random, flat.dtype(), {kept});
    for (op.first = 0; op.first < pitch; op.first += width) {
      op.x = memory.New(flat.dtype(), {shards, std::min(width, pitch - op.first)});
      ForEach(op.x.layout, [&](const Index& i) {
        Set(op.x, i, Get(flat, {i[0], op.first + i[1]}));
      });
      op.update = op.first == 0 ? Update::kOverwrite : Update::kAccumulate;
      Run(subject, memory, subject.table.keep_range, op);
    }
    ForEach(op.out.layout, [&](const Index& i) {
      const int64_t at = begin + i[0];
      CHECK(Get(op.out, i) == (at < all ? Get(flat, {at / pitch, at % pitch}) : 0));
    });
  }
}

void CachedRowsContract(const Subject& subject) {
  Random random(91);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Memory memory;
    const int64_t length = Pick(random, 1, 40), sequences = Pick(random, 1, 3),
                  heads = Pick(random, 1, 3), half = Pick(random, 1, 17),
                  columns = PickSize(random);
    std::vector<int64_t> done(static_cast<size_t>(sequences));
    const Rows rows = NextRows(memory, random, length, done);
    if (rows.of.empty()) continue;
    const auto count = std::ssize(rows.of);
    // Each row's token and position looked up, one rounding.
    EmbedRowsOp<TensorView> embed{};
    embed.tokens = rows.tokens, embed.at = rows.at;
    embed.table = memory.NewRandom(random, PickFloat(random), {13, columns}, Strides::kPadded);
    if (Flip(random))
      embed.positions =
          memory.NewRandom(random, PickFloat(random), {length, columns}, Strides::kPadded);
    embed.out = memory.New(PickFloat(random), {count, columns}, Strides::kPadded);
    Run(subject, memory, subject.table.embed_rows, embed);
    Reference sums;
    ForEach(embed.out.layout, [&](const Index& i) {
      const auto token = std::max<int64_t>(0, embed.tokens.as<int32_t>()[i[0]]);
      const double a = Get(embed.table, token, i[1]),
                   b = embed.positions ? Get(embed.positions, embed.at.as<int32_t>()[i[0]], i[1])
                                       : 0;
      sums.push_back({a + b, kU * std::abs(a + b)});
    });
    CheckNear(embed.out, sums, "embedded rows");

    // Bits of a rotation of whole sequences, of which each row is one of length 1 behind a table
    // that begins at its position.
    RopeTableOp<TensorView> make{};
    make.table = memory.New(DType::kF32, {length, half, 2});
    Run(subject, memory, subject.table.rope_table, make);
    RopeRowsOp<TensorView> turn{};
    turn.at = rows.at, turn.table = make.table;
    const TensorView x = memory.NewRandom(random, PickFloat(random), {count, heads * 2 * half});
    const TensorView expected = memory.Clone(x);
    for (int64_t r = 0; r < count; ++r) {
      RopeOp<TensorView> one{};
      one.x = expected;
      one.x.data += r * expected.stride(0) * Bytes(x.dtype());
      one.x.layout = DenseLayout(x.dtype(), {1, 1, heads, 2 * half});
      one.table = make.table;
      one.table.data += rows.at.as<int32_t>()[r] * half * 2 * 4;
      one.table.layout = DenseLayout(DType::kF32, {1, half, 2});
      Run(subject, memory, subject.table.rope, one);
    }
    turn.x = HeadsOf(x, 0, heads, 2 * half);
    Run(subject, memory, subject.table.rope_rows, turn);
    CHECK(SameBits(x, expected));

    ClearCacheOp<TensorView> clear{};
    clear.x = memory.NewRandom(random, PickFloat(random), {3, 5, columns});
    Run(subject, memory, subject.table.clear_cache, clear);
    ForEach(clear.x.layout, [&](const Index& i) { CHECK(Get(clear.x, i) == 0); });
  }
}

}  // namespace millrace::test
