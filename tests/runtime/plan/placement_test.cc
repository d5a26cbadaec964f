// Placements against brute force: matrices are laid over the ranks of a mesh that no model uses
// yet, every rank computes with what it holds, and what all hold together is the whole result where
// a rule gives a placement, and only there.
#include "runtime/plan/graph/placement.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/attention.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"

namespace millrace {
namespace {

constexpr int kSize = 12;  // of all dims: each set of axes below cuts it evenly
const Mesh kMesh = Mesh(2, 1).With(Axis::kContext, 2).With(Axis::kTensor, 3);
const std::array<AxisSet, 5> kCuts = {AxisSet(), AxisSet(Axis::kReplicate), AxisSet(Axis::kContext),
                                      AxisSet(Axis::kTensor),
                                      AxisSet{Axis::kContext, Axis::kTensor}};

struct Matrix {
  int rows = kSize, columns = kSize;
  std::vector<int64_t> data = std::vector<int64_t>(static_cast<size_t>(rows * columns));
  Matrix() = default;
  Matrix(int r, int c) : rows(r), columns(c) {}
  int64_t& At(int r, int c) { return data[static_cast<size_t>(r * columns + c)]; }
  int64_t At(int r, int c) const { return data[static_cast<size_t>(r * columns + c)]; }
  bool operator==(const Matrix&) const = default;
};
using Local = std::vector<Matrix>;  // by rank

// Small and different everywhere.
int64_t Noise(int seed, int r, int c) { return (seed * 7919 + r * 104729 + c * 1299709) % 17 - 8; }

Matrix Whole(int seed) {
  Matrix m;
  for (int r = 0; r < kSize; ++r)
    for (int c = 0; c < kSize; ++c) m.At(r, c) = Noise(seed, r, c);
  return m;
}

Matrix BlockOf(const Matrix& whole, const ValuePlacement& p, int rank) {
  Matrix block(kSize / kMesh.Size(p.Cut(0)), kSize / kMesh.Size(p.Cut(1)));
  const int row = kMesh.Index(rank, p.Cut(0)) * block.rows,
            column = kMesh.Index(rank, p.Cut(1)) * block.columns;
  for (int r = 0; r < block.rows; ++r)
    for (int c = 0; c < block.columns; ++c) block.At(r, c) = whole.At(row + r, column + c);
  return block;
}

// What each rank holds of `whole`. Parts of a sum: noise, but the first, which is the rest.
Local Lay(const Matrix& whole, const ValuePlacement& p) {
  const int parts = kMesh.Size(p.partial);
  Local local;
  for (int rank = 0; rank < kMesh.world(); ++rank) {
    const int part = kMesh.Index(rank, p.partial);
    Matrix mine = whole;
    for (int r = 0; r < kSize; ++r)
      for (int c = 0; c < kSize; ++c) {
        if (part > 0) mine.At(r, c) = Noise(100 + part, r, c);
        for (int other = 1; part == 0 && other < parts; ++other)
          mine.At(r, c) -= Noise(100 + other, r, c);
      }
    local.push_back(BlockOf(mine, p, rank));
  }
  return local;
}

// Whether `local` is `whole`, placed so: sums over the partial axes are the right blocks, and every
// block is somewhere.
bool Is(const Local& local, const ValuePlacement& p, const Matrix& whole) {
  std::vector<char> held(kSize * kSize);
  for (int rank = 0; rank < kMesh.world(); ++rank) {
    const Matrix wanted = BlockOf(whole, p, rank);
    Matrix sum(wanted.rows, wanted.columns);
    for (const int member : kMesh.Group(rank, p.partial)) {
      const Matrix& part = local[static_cast<size_t>(member)];
      if (part.rows != sum.rows || part.columns != sum.columns) return false;
      for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += part.data[i];
    }
    if (sum != wanted) return false;
    for (int r = 0; r < sum.rows; ++r)
      for (int c = 0; c < sum.columns; ++c)
        held[static_cast<size_t>((kMesh.Index(rank, p.Cut(0)) * sum.rows + r) * kSize +
                                 kMesh.Index(rank, p.Cut(1)) * sum.columns + c)] = 1;
  }
  return std::find(held.begin(), held.end(), 0) == held.end();
}

Matrix Product(const Matrix& x, const Matrix& weight) {
  Matrix y(x.rows, weight.rows);
  for (int r = 0; r < y.rows; ++r)
    for (int n = 0; n < y.columns; ++n)
      for (int k = 0; k < x.columns; ++k) y.At(r, n) += x.At(r, k) * weight.At(n, k);
  return y;
}

std::vector<ValuePlacement> Placements(bool partial) {
  std::vector<ValuePlacement> all;
  for (const AxisSet rows : kCuts)
    for (const AxisSet columns : kCuts)
      for (const AxisSet sum : kCuts)
        if (const ValuePlacement p{{rows, columns}, sum}; Valid(p) && (partial || sum.empty()))
          all.push_back(p);
  return all;
}

// The rule's placement, or that it refuses.
std::optional<ValuePlacement> Given(const std::function<ValuePlacement()>& rule) {
  try {
    return rule();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
    CHECK_THAT(error.what(), Catch::Contains("node here"));
    return std::nullopt;
  }
}

TEST_CASE("a product has the placement of what the ranks compute, or none", "[plan][placement]") {
  const Matrix x = Whole(1), weight = Whole(2), y = Product(x, weight);
  int allowed = 0;
  for (const ValuePlacement& px : Placements(true)) {
    const Local local_x = Lay(x, px);
    for (const ValuePlacement& pw : Placements(false)) {
      CAPTURE(ToString(px), ToString(pw));
      const Local local_w = Lay(weight, pw);
      const ValuePlacement expected{{px.Cut(0), pw.Cut(0)}, px.partial | px.Cut(1)};
      bool works = local_x[0].columns == local_w[0].columns;
      if (works) {
        Local local_y;
        for (size_t rank = 0; rank < local_x.size(); ++rank)
          local_y.push_back(Product(local_x[rank], local_w[rank]));
        works = Is(local_y, expected, y);
      }
      const std::optional<ValuePlacement> given =
          Given([&] { return ProductPlacement(px, pw, "here"); });
      REQUIRE(given.has_value() == works);
      if (given) REQUIRE(*given == expected);
      allowed += works;
    }
  }
  REQUIRE(allowed > 50);
}

TEST_CASE("a sum is of equal placements", "[plan][placement]") {
  const Matrix a = Whole(3), b = Whole(4);
  Matrix sum = a;
  for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += b.data[i];
  for (const ValuePlacement& pa : Placements(true))
    for (const ValuePlacement& pb : Placements(true)) {
      CAPTURE(ToString(pa), ToString(pb));
      Local local = Lay(a, pa);
      const Local other = Lay(b, pb);
      bool works = local[0].rows == other[0].rows && local[0].columns == other[0].columns;
      if (works) {
        for (size_t rank = 0; rank < local.size(); ++rank)
          for (size_t i = 0; i < local[rank].data.size(); ++i)
            local[rank].data[i] += other[rank].data[i];
        works = Is(local, pa, sum);
      }
      const std::optional<ValuePlacement> given =
          Given([&] { return SumPlacement(pa, pb, "here"); });
      REQUIRE(given.has_value() == works);
      if (given) REQUIRE(*given == pa);
    }
}

TEST_CASE("functions of elements and of rows need what they are functions of",
          "[plan][placement]") {
  const Matrix x = Whole(5);
  const auto squares = [](const Matrix& m) {
    Matrix y = m;
    for (int64_t& value : y.data) value *= value;
    return y;
  };
  const auto centred = [](const Matrix& m) {  // each element times its row's sum
    Matrix y = m;
    for (int r = 0; r < m.rows; ++r) {
      int64_t sum = 0;
      for (int c = 0; c < m.columns; ++c) sum += m.At(r, c);
      for (int c = 0; c < m.columns; ++c) y.At(r, c) *= sum;
    }
    return y;
  };
  for (const ValuePlacement& p : Placements(true)) {
    CAPTURE(ToString(p));
    const auto check = [&](const auto& f, const auto& rule) {
      Local local = Lay(x, p);
      for (Matrix& each : local) each = f(each);
      const std::optional<ValuePlacement> given = Given([&] { return rule(p, "here"); });
      REQUIRE(given.has_value() == Is(local, p, f(x)));
      if (given) REQUIRE(*given == p);
    };
    check(squares, ElementwisePlacement);
    check(centred, RowwisePlacement);
  }
}

// What each rank of a tensor axis of 2 holds, in a graph: builders check it and say what comes out.
TEST_CASE("builders place what they emit, and refuse what no rank could compute",
          "[plan][placement]") {
  ModelSpec spec;
  spec.family = "placed";
  spec.vocab = 8;
  spec.units = {{"u",
                 {{.name = "weight", .dims = {6, 4}, .padded_rows = 6},
                  {.name = "bias", .dims = {6}, .padded_rows = 6},
                  {.name = "scale", .dims = {4}, .padded_rows = 4, .kind = ParamKind::kNorm}}}};
  ForwardBuilder b(spec, {.batch = 2, .seq = 4}, DType::kF32, DType::kF32);
  b.BeginUnit("u");
  const AxisSet tensor = Axis::kTensor;
  const ValueId rows = b.NewActivation("rows", {4, 4}, {{tensor}, {}}),
                columns = b.NewActivation("columns", {8, 4}, {{AxisSet(), tensor}, {}}),
                sum = b.NewActivation("sum", {8, 4}, {{}, tensor});
  // Half of the rows: everything that works row by row keeps them.
  const ValueId y =
      Linear(b, Norm(b, rows, "scale", "", NormKind::kRms, 1e-5f, "n"), "weight", "bias", "y");
  CHECK(b.value(y).dims == std::vector<int64_t>{4, 6});
  CHECK(b.value(y).placement == ValuePlacement{{tensor}, {}});
  CHECK(b.value(Add(b, sum, sum, "s")).placement == ValuePlacement{{}, tensor});
  CHECK(b.value(Linear(b, sum, "weight", "", "p")).placement == ValuePlacement{{}, tensor});
  CHECK(b.value(Activation(b, columns, ActivationKind::kGelu, "g")).placement ==
        ValuePlacement{{AxisSet(), tensor}, {}});
  CHECK_THROWS_WITH(Linear(b, sum, "weight", "bias", "biased"), Catch::Contains("node biased"));
  CHECK_THROWS_WITH(Linear(b, columns, "weight", "", "cut"), Catch::Contains("node cut"));
  CHECK_THROWS_WITH(Add(b, sum, columns, "mixed"), Catch::Contains("node mixed"));
  CHECK_THROWS_WITH(Norm(b, columns, "scale", "", NormKind::kRms, 1e-5f, "c"),
                    Catch::Contains("whole rows"));
  CHECK_THROWS_WITH(Activation(b, columns, ActivationKind::kSwiglu, "swiglu"),
                    Catch::Contains("node swiglu"));
  CHECK_THROWS_WITH(Activation(b, sum, ActivationKind::kGelu, "f"),
                    Catch::Contains("a sum that is not formed"));
  CHECK_THROWS_WITH(Attention(b, rows, {2, 1, 1}, "att"), Catch::Contains("all 8 rows"));
  CHECK_THROWS_WITH(b.NewActivation("twice", {4, 4}, {{tensor}, tensor}),
                    Catch::Contains("placed twice"));
}

TEST_CASE("a placement says where a value is", "[plan][placement]") {
  CHECK(ToString(ValuePlacement{}) == "whole");
  CHECK(ValuePlacement{{AxisSet(), AxisSet()}, {}}.whole());
  const ValuePlacement p{{AxisSet(Axis::kContext), AxisSet()},
                         AxisSet{Axis::kTensor, Axis::kExpert}};
  CHECK(ToString(p) == "[context, none] partial expert+tensor");
  CHECK(Valid(p));
  CHECK_FALSE(Valid(ValuePlacement{{AxisSet(Axis::kTensor), AxisSet(Axis::kTensor)}, {}}));
  CHECK_FALSE(Valid(ValuePlacement{{AxisSet(Axis::kTensor)}, Axis::kTensor}));
}

}  // namespace
}  // namespace millrace
