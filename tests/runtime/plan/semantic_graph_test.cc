#include "runtime/plan/graph/semantic_graph.h"

#include <catch2/catch.hpp>
#include <functional>

#include "runtime/base/error.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

using test::ForwardOf;
using test::TinyGpt2;
using test::TinyLlama;

const std::string kGolden = "tests/runtime/plan/golden/";

TEST_CASE("a forward prints one line per node", "[plan][semantic]") {
  test::RequireGolden(kGolden + "gpt2_forward_train.txt", ToString(ForwardOf(TinyGpt2(2))));
  test::RequireGolden(kGolden + "llama_forward_train.txt", ToString(ForwardOf(TinyLlama(2))));
  test::RequireGolden(kGolden + "gpt2_forward_eval.txt",
                      ToString(ForwardOf(TinyGpt2(), HeadMode::kEvalLoss)));
  test::RequireGolden(
      kGolden + "llama_forward_logits.txt",
      ToString(ForwardOf(TinyLlama(), HeadMode::kLogits, DType::kBF16, DType::kF32)));
}

TEST_CASE("norm parameters follow their own encoding, everything else the compute dtype",
          "[plan][semantic]") {
  const SemanticGraph graph =
      ForwardOf(TinyGpt2(), HeadMode::kTrainLoss, DType::kBF16, DType::kF32);
  int norms = 0, others = 0;
  for (const Value& value : graph.values) {
    if (value.role != ValueRole::kParam) continue;
    const bool norm = value.name.find("ln_") != std::string::npos;
    CAPTURE(value.name);
    CHECK(value.dtype == (norm ? DType::kF32 : DType::kBF16));
    ++(norm ? norms : others);
  }
  CHECK(norms == 6);
  CHECK(others == 10);
}

// A model of one unit with a table [5 (8 stored), 4], a square matrix and two vectors.
ModelSpec SmallSpec() {
  const auto param = [](std::string name, std::vector<int64_t> dims, int64_t rows) {
    ParamSpec p;
    p.name = std::move(name);
    p.dims = std::move(dims);
    p.padded_rows = rows;
    return p;
  };
  ModelSpec spec;
  spec.family = "small";
  spec.units = {{"h.0",
                 {param("table", {5, 4}, 8), param("square", {4, 4}, 4), param("four", {4}, 4),
                  param("three", {3}, 3)}}};
  spec.vocab = 5;
  return spec;
}

std::string MessageOf(const std::function<void(ForwardBuilder&)>& emit) {
  ForwardBuilder builder(SmallSpec(), {.batch = 2, .seq = 3}, DType::kF32, DType::kF32);
  try {
    emit(builder);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
    return error.what();
  }
  return "no error";
}

TEST_CASE("a wrong node is refused by name", "[plan][semantic]") {
  using Catch::Matchers::Contains;
  const auto with_x = [](std::function<void(ForwardBuilder&, ValueId)> rest) {
    return [rest](ForwardBuilder& b) {
      b.BeginUnit("h.0");
      rest(b, Embedding(b, "table", "", "x"));
    };
  };
  CHECK(MessageOf(with_x([](ForwardBuilder& b, ValueId x) {
          Linear(b, x, "square", "four", "fine");
        })) == "no error");
  CHECK_THAT(MessageOf([](ForwardBuilder& b) { Embedding(b, "table", "", "early"); }),
             Contains("early") && Contains("BeginUnit"));
  CHECK_THAT(MessageOf([](ForwardBuilder& b) { b.BeginUnit("h.7"); }), Contains("h.7"));
  CHECK_THAT(
      MessageOf(with_x([](ForwardBuilder& b, ValueId x) { Linear(b, x, "circle", "", "lin"); })),
      Contains("lin") && Contains("circle"));
  CHECK_THAT(MessageOf(with_x(
                 [](ForwardBuilder& b, ValueId x) { Linear(b, x, "square", "three", "lin"); })),
             Contains("lin") && Contains("three") && Contains("[3]") && Contains("[4]"));
  CHECK_THAT(MessageOf(with_x([](ForwardBuilder& b, ValueId x) {
               Norm(b, x, "three", "", NormKind::kRms, 1e-5f, "nrm");
             })),
             Contains("nrm") && Contains("three"));
  CHECK_THAT(MessageOf(with_x([](ForwardBuilder& b, ValueId x) {
               Attention(b, x, {2, 1, 2}, "att");
             })),
             Contains("att") && Contains("4") && Contains("8"));
  CHECK_THAT(MessageOf(with_x([](ForwardBuilder& b, ValueId x) {
               Attention(b, x, {3, 2, 1}, "att");
             })),
             Contains("3 heads over 2"));
  CHECK_THAT(MessageOf(with_x(
                 [](ForwardBuilder& b, ValueId) { Add(b, ValueId{99}, ValueId{99}, "sum"); })),
             Contains("sum"));
  CHECK_THAT(MessageOf([](ForwardBuilder& b) {
               b.BeginUnit("h.0");
               Embedding(b, "square", "square", "fits");  // 3 positions of 4
               Embedding(b, "table", "three", "pos");
             }),
             Contains("pos") && Contains("three"));
}

TEST_CASE("a sequence longer than the position table is refused", "[plan][semantic]") {
  ForwardBuilder builder(SmallSpec(), {.batch = 1, .seq = 5}, DType::kF32, DType::kF32);
  builder.BeginUnit("h.0");
  CHECK_THROWS_WITH(Embedding(builder, "table", "square", "x"),
                    Catch::Matchers::Contains("square"));
}

}  // namespace
}  // namespace millrace
