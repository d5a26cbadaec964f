// Values that several ops write in part: whole once their columns cover every byte, and not before.
#include "runtime/plan/check/part_cover.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/plan/check/access_table.h"
#include "tests/runtime/plan/checker_testing.h"
#include "tests/runtime/plan/hand_plan.h"

namespace millrace::test {
namespace {

constexpr StreamId kC = StreamId::kCompute, kG = StreamId::kGather;
constexpr int64_t kRows = 8, kWidth = 8;  // of HandPlan's buffers

int64_t Below(std::mt19937& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
}

// Columns [first, first + width) of a buffer's rows.
View ColumnsIn(BufferId buffer, int64_t first, int64_t width) {
  View view = HandPlan::Part(buffer, first, 0);
  view.layout = DenseLayout(DType::kF32, {kRows, width});
  view.layout.strides[0] = kWidth;
  return view;
}

// A master's values into the columns.
int Fill(HandPlan& p, BufferId weights, const View& columns, StreamId stream = kC) {
  View x = HandPlan::Part(weights, 0, 0);
  x.layout = DenseLayout(DType::kF32, {columns.layout.dims[0], columns.layout.dims[1]});
  return p.Copy(stream, x, columns);
}

struct Buffers {
  HandPlan p;
  BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 9}}),
           b = p.Buffer("b", 2, {{0, 9}});
  int Fill(int64_t first, int64_t width, StreamId stream = kC) {
    return test::Fill(p, weights, ColumnsIn(a, first, width), stream);
  }
  int Read() { return p.Copy(kC, p.Whole(a), p.Whole(b)); }
};

void RequireUnwritten(const StepPlan& plan) {
  RequireViolation(plan, ViolationKind::kUndefined, "x reads a where nothing has written it");
}

}  // namespace

TEST_CASE("columns of a view", "[plan][checker]") {
  View view;
  view.offset = 5;
  view.layout = DenseLayout(DType::kBF16, {2, 3, 4, 8});  // B, T, heads, D of rows of 40
  view.layout.strides = {120, 40, 8, 1};
  REQUIRE(HasHoles(view));
  CHECK(ColumnsOf(view) == Columns{10, 80, 64, 6});
  view.layout.strides[0] = 160;  // rows between the sequences
  CHECK_FALSE(ColumnsOf(view));
  view.layout.strides = {132, 44, 10, 1};  // columns between the heads
  CHECK_FALSE(ColumnsOf(view));
  view.layout.strides = {120, 40, 8, 1};
  view.microbatch_stride = 4;
  CHECK_FALSE(ColumnsOf(view));
  view.layout = DenseLayout(DType::kF32, {8, 8});
  CHECK_FALSE(HasHoles(view));

  CHECK(Tile({{16, 40, 24, 8}, {8, 40, 8, 8}, {40, 40, 8, 8}}));
  CHECK_FALSE(Tile({{16, 40, 24, 8}, {8, 40, 8, 8}}));
  CHECK_FALSE(Tile({{16, 40, 24, 8}, {8, 40, 8, 8}, {40, 48, 8, 8}}));
  CHECK_FALSE(Tile({{16, 40, 24, 8}, {8, 40, 8, 8}, {40, 40, 8, 4}}));   // of fewer rows
  CHECK_FALSE(Tile({{16, 40, 24, 8}, {8, 40, 16, 8}, {40, 40, 8, 8}}));  // one twice
  CHECK_FALSE(
      Tile({{16, 40, 16, 8}, {16, 40, 16, 8}, {32, 40, 8, 8}}));  // as many bytes, one part missing
}

TEST_CASE("parts fill a cell when every byte is in one of them", "[plan][checker]") {
  std::mt19937 random(2);
  int whole = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const int64_t stride = 2 + Below(random, 9), begin = 100 + Below(random, 30);
    const ByteRange cell{begin, begin + 1 + Below(random, 3 * stride)};
    PartCover cover;
    std::vector<bool> written(static_cast<size_t>(cell.end - cell.begin));
    for (int part = 0; part < 4; ++part) {
      // The view begins in front of the cell.
      const Columns columns{begin - Below(random, 2 * stride), stride, 1 + Below(random, stride)};
      for (int64_t byte = cell.begin; byte < cell.end; ++byte)
        if ((byte - columns.begin) % stride < columns.width)
          written[static_cast<size_t>(byte - cell.begin)] = true;
      const bool all = std::find(written.begin(), written.end(), false) == written.end();
      INFO("trial " << trial << ", part " << part);
      REQUIRE(cover.Add({7}, cell, columns) == all);
      if (!all) continue;
      REQUIRE(cover == PartCover());
      ++whole;
      break;
    }
  }
  CHECK(whole > 500);
  CHECK(whole < 1900);
}

TEST_CASE("parts of rows at different distances do not add up", "[plan][checker]") {
  PartCover cover;
  CHECK_FALSE(cover.Add({0}, {0, 64}, {0, 16, 4}));
  CHECK_FALSE(cover.Add({0}, {0, 64}, {4, 8, 4}));  // [8, 12) is in neither
  CHECK(cover.Add({0}, {0, 64}, {0, 8, 4}));
}

TEST_CASE("a value that ops write in part is whole when all of them have", "[plan][checker]") {
  Buffers f;
  SECTION("in any order, on two streams") {
    f.Fill(5, 3);
    f.Fill(0, 3, kG);
    f.Fill(3, 2);
    f.Read();
    // Columns interleave: to the proof, which takes spans, their writers follow each other.
    RequireProved(f.p.Done({{1, 0}, {2, 1}}));
    RequireViolation(f.p.Done({{1, 0}}), ViolationKind::kRace, "out writes a");
  }
  SECTION("one is left out") {
    const int64_t missing = GENERATE(0, 1, 2);
    const int64_t first[] = {0, 3, 5}, width[] = {3, 2, 3};
    for (int64_t part = 0; part < 3; ++part)
      if (part != missing) f.Fill(first[part], width[part]);
    f.Read();
    RequireUnwritten(f.p.Done());
  }
  SECTION("as many columns, of which two are the same") {
    f.Fill(0, 3);
    f.Fill(2, 2);
    f.Fill(5, 3);
    f.Read();
    RequireUnwritten(f.p.Done());
  }
  SECTION("they overlap and leave none out") {
    f.Fill(0, 4);
    f.Fill(2, 6);
    f.Read();
    RequireProved(f.p.Done());
  }
  SECTION("the last one comes too late") {
    f.Fill(0, 3);
    f.Read();
    f.Fill(3, 5);
    RequireUnwritten(f.p.Done());
  }
  SECTION("a row too few") {
    f.Fill(0, 3);
    View rest = ColumnsIn(f.a, 3, 5);
    rest.layout.dims[0] = kRows - 1;
    Fill(f.p, f.weights, rest);
    f.Read();
    RequireUnwritten(f.p.Done());
  }
  SECTION("of rows at another distance") {
    f.Fill(0, 4);
    View other = ColumnsIn(f.a, 4, 4);
    other.layout.dims[0] = 4;
    other.layout.strides[0] = 16;
    Fill(f.p, f.weights, other);
    f.Read();
    RequireUnwritten(f.p.Done());
  }
  SECTION("a part of what is whole leaves it whole") {
    f.p.Copy(kC, f.p.Whole(f.weights), f.p.Whole(f.a));
    f.Fill(2, 3);
    f.Read();
    RequireProved(f.p.Done());
  }
  SECTION("scratch takes what parts have written") {
    f.Fill(0, 3);
    MatmulOp<View> matmul;
    matmul.a = matmul.b = matmul.out = f.p.Part(f.b, 0, 16);
    for (View* view : {&matmul.a, &matmul.b, &matmul.out})
      view->layout = DenseLayout(DType::kF32, {4, 4});
    matmul.a.buffer = matmul.b.buffer = f.weights;
    matmul.scratch = f.p.Whole(f.a);
    f.p.Op(kC, matmul, "matmul");
    f.Fill(3, 5);
    f.Read();
    RequireUnwritten(f.p.Done());
  }
}

TEST_CASE("parts of two stays are not one value", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights");
  const bool apart = GENERATE(true, false);
  using Live = std::vector<Interval>;
  const BufferId a = p.Buffer("a", 1, apart ? Live{{0, 1}, {1, 3}} : Live{{0, 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  p.plan.buffers[static_cast<size_t>(a.value)].offsets.resize(apart ? 2 : 1, 256);
  Fill(p, weights, ColumnsIn(a, 3, 5));
  Fill(p, weights, ColumnsIn(a, 0, 3));
  p.Copy(kC, p.Part(a, kWidth, 4 * kWidth), p.Part(b, 0, 4 * kWidth));  // rows that both lie in
  if (apart)
    RequireUnwritten(p.Done());
  else
    RequireProved(p.Done());
}

TEST_CASE("parts of two microbatches are not one value", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  Fill(p, weights, ColumnsIn(a, 3, 5));
  p.plan.bodies.push_back({"more", {}, 1});
  Fill(p, weights, ColumnsIn(a, 0, 3));
  p.Copy(kC, p.Part(a, kWidth, 4 * kWidth), p.Part(b, 0, 4 * kWidth));
  StepPlan plan = p.Done();
  plan.schedule = {{0, 0, {}}, {1, 0, {}}, {0, 1, {}}, {1, 1, {}}};
  RequireProved(plan, kAlone, 2);
  plan.schedule = {{0, 0, {}}, {1, 1, {}}};
  RequireViolation(plan, ViolationKind::kUndefined, "x reads a where nothing", kAlone, 2);
}

TEST_CASE("random parts are proved when, and only when, they cover", "[plan][checker]") {
  std::mt19937 random(3);
  int proved = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Buffers f;
    std::vector<bool> written(static_cast<size_t>(kWidth));
    for (int64_t parts = 1 + Below(random, 6); parts > 0; --parts) {
      const int64_t first = Below(random, kWidth), width = 1 + Below(random, kWidth - first);
      f.Fill(first, width);
      std::fill_n(written.begin() + first, width, true);
    }
    f.Read();
    const bool all = std::find(written.begin(), written.end(), false) == written.end();
    INFO("trial " << trial);
    REQUIRE(FindViolations(f.p.Done(), kAlone, 1).empty() == all);
    proved += all;
  }
  CHECK(proved > 50);
  CHECK(proved < 350);
}

}  // namespace millrace::test
