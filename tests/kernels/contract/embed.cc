#include <catch2/catch.hpp>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// A token buffer of two halves; the op is given the first and the parity. Tokens are
// those of the half in use.
struct TokenBuffer {
  TensorView first;   // [B,T] at parity 0
  TensorView in_use;  // [B,T] at the parity
  int64_t parity_stride;
};

TokenBuffer MakeTokens(Memory& memory, Random& random, int64_t batch, int64_t length, int64_t vocab,
                       int64_t parity) {
  // Rows of length + 1, as a training window has; the view skips the last column. -1: no token.
  const TensorView all = memory.NewTokens(random, {2, batch, length + 1}, -1, vocab);
  TokenBuffer tokens{all, all, batch * (length + 1)};
  tokens.first.layout = DenseLayout(DType::kI32, {batch, length});
  tokens.first.layout.strides = {length + 1, 1, 0, 0};
  tokens.in_use = tokens.first;
  tokens.in_use.data += parity * tokens.parity_stride * 4;
  return tokens;
}

// All rows of the tokens, or some that follow each other.
struct RowSpan {
  int64_t begin = 0, count = 0;
};
RowSpan PickRows(Random& random, int64_t all) {
  if (all == 0 || Flip(random)) return {0, all};
  const int64_t begin = Pick(random, 0, all - 1);
  return {begin, Pick(random, 0, all - begin)};
}

}  // namespace

namespace {

// None, or of each row some.
TensorView PickDocuments(Memory& memory, Random& random, int64_t batch, int64_t length) {
  if (Flip(random)) return {};
  const TensorView documents = memory.New(DType::kI32, {batch, length});
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0, begin = 0; t < length; ++t) {
      if (Pick(random, 0, 2) == 0) begin = t;
      documents.as<int32_t>()[b * length + t] = static_cast<int32_t>(begin);
    }
  return documents;
}

// Of row b*T + t.
int64_t PositionOf(const TensorView& documents, int64_t row, int64_t length) {
  return row % length - (documents ? documents.as<int32_t>()[row] : 0);
}

}  // namespace

void TakeInputContract(const Subject& subject) {
  Random random(5);
  for (int repeat = 0; repeat < 10; ++repeat) {
    Memory memory;
    const int64_t batch = Pick(random, 0, 3), length = Pick(random, 1, 300);
    StepScalars scalars = MakeScalars();
    scalars.token_parity = repeat % 2;
    const TokenBuffer tokens =
        MakeTokens(memory, random, batch, length, 1000, scalars.token_parity);
    TakeInputOp<TensorView> op{};
    op.x = tokens.first;
    op.parity_stride = tokens.parity_stride;
    op.scalars = memory.NewScalars(scalars);
    op.out = memory.New(DType::kI32, {batch, length});
    Run(subject, memory, subject.table.take_input, op);
    bool same = true;
    ForEach(op.out.layout,
            [&](const Index& i) { same &= Get(op.out, i) == Get(tokens.in_use, i[0], i[1]); });
    CHECK(same);
  }
}

void EmbedContract(const Subject& subject) {
  Random random(1), document_random(3);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t batch = Pick(random, 0, 3), length = Pick(random, 1, 9),
                  vocab = Pick(random, 1, 40);
    const int64_t columns = repeat == 0 ? 1030 : PickSize(random);
    StepScalars scalars = MakeScalars();
    scalars.token_parity = repeat % 2;
    const TokenBuffer tokens =
        MakeTokens(memory, random, batch, length, vocab, scalars.token_parity);
    EmbedOp<TensorView> op{};
    op.tokens = tokens.first;
    op.parity_stride = tokens.parity_stride;
    op.scalars = memory.NewScalars(scalars);
    op.table =
        memory.NewRandom(random, PickFloat(random), {vocab + 2, columns}, PickRowStrides(random));
    if (Flip(random)) op.positions = memory.NewRandom(random, PickFloat(random), {length, columns});
    op.documents = PickDocuments(memory, document_random, batch, length);
    const RowSpan rows = PickRows(random, batch * length);
    op.row_begin = rows.begin;
    op.out = memory.New(PickFloat(random), {rows.count, columns}, PickRowStrides(random));
    Reference reference;
    ForEach(op.out.layout, [&](const Index& i) {
      const int64_t row = rows.begin + i[0];
      const auto token =
          static_cast<int64_t>(std::max(0.0, Get(tokens.in_use, row / length, row % length)));
      const double value =
          Get(op.table, token, i[1]) +
          (op.positions ? Get(op.positions, PositionOf(op.documents, row, length), i[1]) : 0);
      reference.push_back({value, kU * std::abs(value)});
    });
    Run(subject, memory, subject.table.embed, op);
    CheckNear(op.out, reference, "embedding");
  }
}

namespace {

constexpr int64_t kManyTokens = 5003;
enum class Repeats { kNone, kFar, kMany, kAll };

// Token of row i of `rows`, at most 5003: another one each; two rows each, far apart; three, one of
// which is of the rows without a token, too; one.
int64_t RepeatedToken(Repeats repeats, int64_t i, int64_t rows) {
  switch (repeats) {
    case Repeats::kNone:
      return (i * 1709 + 13) % kManyTokens;
    case Repeats::kFar:
      return i % CeilDiv(rows, 2);
    case Repeats::kMany:
      return i * i % 5 - 1;
    case Repeats::kAll:
      return 3;
  }
  return 0;
}

// Values say which row it is, and no sum of them is rounded: a row that is lost, comes twice or
// goes to another token is seen.
void NumberedRows(const Subject& subject, Random& random, int64_t count, Repeats repeats,
                  int64_t columns) {
  Memory memory;
  const bool many = repeats == Repeats::kNone || repeats == Repeats::kFar;
  const int64_t vocab = many ? kManyTokens : 5, batch = 3, begin = 1,
                length = CeilDiv(count + 2, batch);
  StepScalars scalars = MakeScalars();
  scalars.token_parity = Pick(random, 0, 1);
  const TokenBuffer tokens = MakeTokens(memory, random, batch, length, vocab, scalars.token_parity);
  EmbedGradOp<TensorView> op{};
  op.tokens = tokens.first;
  op.parity_stride = tokens.parity_stride;
  op.scalars = memory.NewScalars(scalars);
  op.row_begin = begin;
  op.d_out = memory.New(PickFloat(random), {count, columns});
  op.table_update = PickUpdate(random);
  // A sum of many rows, rounded to 16 bits, may be off by more than a row.
  op.d_table = memory.New(many ? PickFloat(random) : DType::kF32, {vocab, columns});
  std::vector<double> sums(static_cast<size_t>(vocab * columns));
  const auto sum = [&](int64_t v, int64_t c) -> double& {
    return sums[static_cast<size_t>(v * columns + c)];
  };
  ForEach(op.d_table.layout, [&](const Index& i) {
    const auto old = static_cast<double>((i[0] + i[1]) % 7);
    Set(op.d_table, i, old);
    if (op.table_update == Update::kAccumulate) sum(i[0], i[1]) = old;
  });
  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = begin + r, token = RepeatedToken(repeats, r, count);
    Set(tokens.in_use, {at / length, at % length}, static_cast<double>(token));
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t value = c < 4 ? r >> (4 * c) & 15 : r * (2 * c + 1) % 13;
      Set(op.d_out, {r, c}, static_cast<double>(value));
      sum(std::max<int64_t>(token, 0), c) += static_cast<double>(value);
    }
  }
  Reference reference;
  for (const double value : sums) reference.push_back({value, 0});
  Run(subject, memory, subject.table.embed_grad, op);
  INFO(count << " rows, repeats " << static_cast<int>(repeats));
  CheckNear(op.d_table, reference, "d_table of numbered rows");
}

}  // namespace

void EmbedGradContract(const Subject& subject) {
  Random random(2), document_random(4);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t batch = Pick(random, 0, 4), length = Pick(random, 1, 11),
                  vocab = Pick(random, 1, 12);
    const int64_t columns = repeat == 0 ? 1030 : PickSize(random);
    StepScalars scalars = MakeScalars();
    scalars.token_parity = repeat % 2;
    const TokenBuffer tokens =
        MakeTokens(memory, random, batch, length, vocab, scalars.token_parity);
    EmbedGradOp<TensorView> op{};
    op.tokens = tokens.first;
    op.parity_stride = tokens.parity_stride;
    op.scalars = memory.NewScalars(scalars);
    op.documents = PickDocuments(memory, document_random, batch, length);
    const RowSpan rows = PickRows(random, batch * length);
    op.row_begin = rows.begin;
    op.d_out =
        memory.NewRandom(random, PickFloat(random), {rows.count, columns}, PickRowStrides(random));
    op.table_update = PickUpdate(random);
    op.positions_update = PickUpdate(random);
    // Rows past the vocabulary are padding that no token names.
    op.d_table =
        memory.NewRandom(random, PickFloat(random), {vocab + 3, columns}, PickRowStrides(random));
    if (Flip(random))
      op.d_positions = memory.NewRandom(random, PickFloat(random), {length, columns});
    const TensorView old_table = memory.Clone(op.d_table);

    const auto start = [](Update update, const TensorView& view, const Index& i) {
      SumOf sum;
      if (update == Update::kAccumulate) sum.Add(Get(view, i));
      return sum;
    };
    Reference table, positions;
    ForEach(op.d_table.layout, [&](const Index& i) {
      SumOf sum = start(op.table_update, op.d_table, i);
      for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t at = rows.begin + r;
        if (std::max(0.0, Get(tokens.in_use, at / length, at % length)) ==
            static_cast<double>(i[0]))
          sum.Add(Get(op.d_out, r, i[1]));
      }
      table.push_back({sum.value, sum.bound()});
    });
    if (op.d_positions) {
      ForEach(op.d_positions.layout, [&](const Index& i) {
        SumOf sum = start(op.positions_update, op.d_positions, i);
        for (int64_t r = 0; r < rows.count; ++r)
          if (PositionOf(op.documents, rows.begin + r, length) == i[0])
            sum.Add(Get(op.d_out, r, i[1]));
        positions.push_back({sum.value, sum.bound()});
      });
    }
    Run(subject, memory, subject.table.embed_grad, op);
    CheckNear(op.d_table, table, "d_table");
    if (op.d_positions) CheckNear(op.d_positions, positions, "d_positions");

    // Accumulating adds the complete sum, once; a row that no token names keeps its bits.
    if (op.table_update == Update::kAccumulate && op.d_table.dtype() == DType::kF32) {
      EmbedGradOp<TensorView> fresh = op;
      fresh.table_update = Update::kOverwrite;
      fresh.d_positions = {};
      fresh.d_table = memory.New(DType::kF32, {vocab + 3, columns});
      Run(subject, memory, subject.table.embed_grad, fresh);
      bool same = true;
      ForEach(op.d_table.layout, [&](const Index& i) {
        same &= Get(op.d_table, i) ==
                static_cast<float>(Get(old_table, i)) + static_cast<float>(Get(fresh.d_table, i));
      });
      INFO("old + (the sum written to a temporary)");
      CHECK(same);
    }
  }

  // Up to 4096 rows are sorted in another way than more of them; packs that are whole and not.
  for (const int64_t count : {1, 31, 1000, 1024, 4096, 4097})
    for (const Repeats repeats : {Repeats::kNone, Repeats::kFar, Repeats::kMany, Repeats::kAll})
      for (const int64_t columns : {9, 16}) NumberedRows(subject, random, count, repeats, columns);
}

void SelectRowContract(const Subject& subject) {
  Random random(3);
  for (int repeat = 0; repeat < 12; ++repeat) {
    Memory memory;
    const int64_t rows = Pick(random, 1, 9), columns = PickSize(random);
    StepScalars scalars = MakeScalars();
    scalars.generate_row = Pick(random, 0, rows - 1);
    SelectRowOp<TensorView> op{};
    const DType dtype = PickFloat(random);
    op.x = memory.NewRandom(random, dtype, {rows, columns}, PickRowStrides(random));
    op.out = memory.New(dtype, {1, columns});
    op.scalars = memory.NewScalars(scalars);
    Run(subject, memory, subject.table.select_row, op);
    Reference reference;
    for (int64_t c = 0; c < columns; ++c)
      reference.push_back({Get(op.x, scalars.generate_row, c), 0});
    CheckNear(op.out, reference, "selected row");
  }
}

}  // namespace millrace::test
