#include "kernels/cpu/embed/embed.h"

#include <cstring>

#include "kernels/cpu/documents.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tokens.h"

namespace millrace::cpu {
namespace {

void CheckToken(int32_t token, int64_t rows) {
  MR_CHECK(token >= 0 && token < rows,
           "token {} at an embedding of {} rows; data is checked when it is loaded", token, rows);
}

// Rows [begin, begin + rows) of the B*T; r counts from the first of them.
struct TokenSpan {
  Tokens all;
  int64_t begin = 0, rows = 0;

  int32_t at(int64_t r) const {
    const int32_t token = all.at(begin + r);
    return token == -1 ? 0 : token;
  }
};

TokenSpan SpanOf(const Tokens& all, const RankInt& row_begin, int64_t rows, const char* op) {
  const TokenSpan span{all, row_begin.value(), rows};
  MR_CHECK(span.begin >= 0 && span.begin + rows <= all.rows(), "{}: rows [{}, {}) of {} tokens", op,
           span.begin, span.begin + rows, all.rows());
  return span;
}

// order[i]: rows of d_out sorted by token, stable; ends[v]: one past the last of token v in
// `order`.
struct SortedTokens {
  int32_t* ends;
  int32_t* order;
};

SortedTokens SortTokens(const TokenSpan& tokens, int64_t vocab, const TensorView& scratch) {
  MR_CHECK_LE((vocab + 1 + tokens.rows) * 4, scratch ? scratch.bytes() : 0, "embed_grad: scratch");
  int32_t* const next = scratch.as<int32_t>();
  int32_t* const order = next + vocab + 1;
  std::fill_n(next, vocab + 1, 0);
  for (int64_t r = 0; r < tokens.rows; ++r) {
    CheckToken(tokens.at(r), vocab);
    ++next[tokens.at(r) + 1];
  }
  for (int64_t v = 0; v < vocab; ++v) next[v + 1] += next[v];
  for (int64_t r = 0; r < tokens.rows; ++r) order[next[tokens.at(r)]++] = static_cast<int32_t>(r);
  return {next, order};
}

void AddTo(float* sum, Row row, int64_t begin, int64_t n) {
  float buffer[kChunk];
  const float* x = Load(row, begin, n, buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

void TableGrad(const EmbedGradOp<TensorView>& op, const TokenSpan& tokens) {
  const int64_t vocab = op.d_table.dim(0);
  const SortedTokens sorted = SortTokens(tokens, vocab, op.scratch);
  const bool accumulate = op.table_update == Update::kAccumulate;
  int32_t begin = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const int32_t end = sorted.ends[v];
    if (begin < end || !accumulate) {
      ForChunks(op.d_table.dim(1), [&](int64_t c, int64_t n) {
        float sum[kChunk];
        std::fill_n(sum, n, 0.0f);
        for (int32_t i = begin; i < end; ++i) AddTo(sum, RowAt(op.d_out, sorted.order[i]), c, n);
        StoreOrAdd(RowAt(op.d_table, v), c, n, sum, accumulate);
      });
    }
    begin = end;
  }
}

// The positions of rows of tokens: row b begins at starts[b % 2] where sequences are split.
struct Positions {
  Positions(const ContextRows& rows, const Tokens& tokens)
      : split(rows.split()),
        length(rows.ranks * tokens.length() * (split ? 2 : 1)),
        starts(ChunkStarts(rows, tokens.length() * 2)) {}
  int64_t FirstOf(int64_t b) const { return split ? starts[static_cast<size_t>(b % 2)] : 0; }

  bool split;
  int64_t length;  // T, of whole sequences
  std::array<int64_t, 2> starts;
};

// Of position p: its rows of d_out are of any place in a row of tokens.
void DocumentPositionsGrad(const EmbedGradOp<TensorView>& op, const TokenSpan& tokens) {
  const int64_t length = tokens.all.length();
  const Documents documents(op.documents, tokens.all.batch(), length);
  for (int64_t p = 0; p < op.d_positions.dim(0); ++p)
    ForChunks(op.d_positions.dim(1), [&](int64_t c, int64_t n) {
      float sum[kChunk];
      std::fill_n(sum, n, 0.0f);
      for (int64_t r = 0; r < tokens.rows; ++r) {
        const int64_t b = (tokens.begin + r) / length, t = (tokens.begin + r) % length;
        if (t - documents.FirstOf(b, t) == p) AddTo(sum, RowAt(op.d_out, r), c, n);
      }
      StoreOrAdd(RowAt(op.d_positions, p), c, n, sum, op.positions_update == Update::kAccumulate);
    });
}

void PositionsGrad(const EmbedGradOp<TensorView>& op, const TokenSpan& tokens) {
  if (op.documents) return DocumentPositionsGrad(op, tokens);
  const bool accumulate = op.positions_update == Update::kAccumulate;
  const Positions positions(op.rows, tokens.all);
  const int64_t length = tokens.all.length();
  for (int64_t p = 0; p < positions.length; ++p) {
    ForChunks(op.d_positions.dim(1), [&](int64_t c, int64_t n) {
      float sum[kChunk];
      std::fill_n(sum, n, 0.0f);
      for (int64_t b = 0; b < tokens.all.batch(); ++b) {
        const int64_t t = p - positions.FirstOf(b), r = b * length + t - tokens.begin;
        if (t >= 0 && t < length && r >= 0 && r < tokens.rows) AddTo(sum, RowAt(op.d_out, r), c, n);
      }
      StoreOrAdd(RowAt(op.d_positions, p), c, n, sum, accumulate);
    });
  }
}

// out[r, :] = table[token, :] (+ positions[t, :]).
void EmbedRow(const TensorView& table, const TensorView& positions, int32_t token, int64_t t,
              const TensorView& out, int64_t r) {
  CheckToken(token, table.dim(0));
  ForChunks(out.dim(1), [&](int64_t c, int64_t n) {
    float table_buffer[kChunk], position_buffer[kChunk], sum[kChunk];
    const float* values = Load(RowAt(table, token), c, n, table_buffer);
    if (positions) {
      const float* more = Load(RowAt(positions, t), c, n, position_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] = values[i] + more[i];
      values = sum;
    }
    Store(RowAt(out, r), c, n, values);
  });
}

}  // namespace

void Embed(const EmbedOp<TensorView>& op, Stream&) {
  const Tokens tokens(op.tokens, op.scalars, op.parity_stride);
  CheckFloat(op.table, "table");
  CheckFloat(op.out, "out");
  const TokenSpan span = SpanOf(tokens, op.row_begin, op.out.dim(0), "embed");
  MR_CHECK_EQ(op.out.dim(1), op.table.dim(1), "embed: columns of out and table");
  const Positions positions(op.rows, tokens);
  const Documents documents(op.documents, tokens.batch(), tokens.length());
  MR_CHECK(!op.documents || !op.rows.split(), "embed: documents in rows split over ranks");
  if (op.positions) {
    CheckFloat(op.positions, "positions");
    MR_CHECK(op.positions.dim(0) >= positions.length && op.positions.dim(1) == op.table.dim(1),
             "embed: positions are {} for T = {} and table {}", ToString(op.positions.layout),
             positions.length, ToString(op.table.layout));
  }
  for (int64_t r = 0; r < span.rows; ++r) {
    const int32_t token = span.at(r);
    const int64_t at = span.begin + r, b = at / tokens.length(), in_row = at % tokens.length(),
                  t = positions.FirstOf(b) + in_row - documents.FirstOf(b, in_row);
    EmbedRow(op.table, op.positions, token, t, op.out, r);
  }
}

void EmbedRows(const EmbedRowsOp<TensorView>& op, Stream&) {
  CheckFloat(op.table, "table");
  CheckFloat(op.out, "out");
  MR_CHECK(op.tokens.numel() == op.out.dim(0) && op.at.numel() == op.out.dim(0) &&
               op.out.dim(1) == op.table.dim(1),
           "embed_rows: {} tokens at {} positions of table {} for out {}", op.tokens.numel(),
           op.at.numel(), ToString(op.table.layout), ToString(op.out.layout));
  if (op.positions) CheckFloat(op.positions, "positions");
  for (int64_t r = 0; r < op.out.dim(0); ++r) {
    const int32_t token = op.tokens.as<int32_t>()[r], t = op.at.as<int32_t>()[r];
    MR_CHECK(t >= 0 && (!op.positions || t < op.positions.dim(0)), "embed_rows: position {} of {}",
             t, op.positions ? op.positions.dim(0) : 0);
    EmbedRow(op.table, op.positions, token == -1 ? 0 : token, t, op.out, r);
  }
}

void EmbedGrad(const EmbedGradOp<TensorView>& op, Stream&) {
  const Tokens all(op.tokens, op.scalars, op.parity_stride);
  CheckFloat(op.d_out, "d_out");
  const TokenSpan tokens = SpanOf(all, op.row_begin, op.d_out.dim(0), "embed_grad");
  if (op.d_table) {
    CheckFloat(op.d_table, "d_table");
    MR_CHECK_EQ(op.d_table.dim(1), op.d_out.dim(1), "embed_grad: columns of d_table and d_out");
    TableGrad(op, tokens);
  }
  if (op.d_positions) {
    CheckFloat(op.d_positions, "d_positions");
    MR_CHECK_EQ(op.d_positions.dim(1), op.d_out.dim(1),
                "embed_grad: columns of d_positions and d_out");
    MR_CHECK_EQ(op.d_positions.dim(0), Positions(op.rows, all).length,
                "embed_grad: rows of d_positions");
    PositionsGrad(op, tokens);
  }
}

void TakeInput(const TakeInputOp<TensorView>& op, Stream&) {
  const Tokens x(op.x, op.scalars, op.parity_stride);
  MR_CHECK(op.out.layout == DenseLayout(DType::kI32, {x.batch(), x.length()}),
           "take_input: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  for (int64_t r = 0; r < x.rows(); ++r) op.out.as<int32_t>()[r] = x.at(r);
}

void SelectRow(const SelectRowOp<TensorView>& op, Stream&) {
  const int64_t row = op.scalars.as<StepScalars>()->generate_row;
  MR_CHECK(row >= 0 && row < op.x.dim(0), "select_row: row {} of {}", row, op.x.dim(0));
  MR_CHECK(op.x.dtype() == op.out.dtype() && op.x.dim(1) == op.out.dim(1),
           "select_row: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  const int64_t bytes = Bytes(op.x.dtype());
  for (int64_t c = 0; c < op.x.dim(1); ++c)
    std::memcpy(op.out.data + c * op.out.stride(1) * bytes,
                op.x.data + (row * op.x.stride(0) + c * op.x.stride(1)) * bytes,
                static_cast<size_t>(bytes));
}

}  // namespace millrace::cpu
