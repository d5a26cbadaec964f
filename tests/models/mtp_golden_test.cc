// Blocks that predict one token further each against PyTorch, written by hand: their losses, which
// are means over their own targets, and every gradient, shared embedding and head included
// (tests/golden/make_mtp.py).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lower.h"
#include "tests/support/program_interpreter.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int64_t kBatch = 3;

json Golden(int64_t depth) {
  std::ifstream in(depth == 1 ? "tests/golden/mtp_tiny/golden.json"
                              : "tests/golden/mtp_deep_tiny/golden.json");
  REQUIRE(in.good());
  return json::parse(in);
}

ModelOptions Options(int64_t depth, double loss_scale) {
  ModelOptions options = test::TinyQwen3(2);
  options.mtp = {.depth = depth, .loss_scale = loss_scale, .block = options.blocks.front()};
  return options;
}

// The script's formulas.
std::vector<float> ValuesOf(const ParamSpec& param, int p) {
  std::vector<float> values(static_cast<size_t>(param.stored_numel()));
  const double base = param.kind == ParamKind::kNorm ? 1 : 0;
  for (int64_t i = 0; i < param.numel(); ++i) {
    const auto at = static_cast<double>(i);
    values[static_cast<size_t>(i)] =
        static_cast<float>(base + 0.4 * std::sin(1.3 * p + 0.71 * at + 0.0137 * at * at));
  }
  return values;
}

// Windows of T + 1 tokens, and -1 behind each, one for each depth.
std::vector<int32_t> Tokens(int64_t length, int64_t vocab, int64_t depth) {
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i <= length; ++i)
      tokens.push_back(static_cast<int32_t>((7 * i + i * i % 11 + 5 * b) % vocab));
    tokens.insert(tokens.end(), static_cast<size_t>(depth), -1);
  }
  return tokens;
}

TEST_CASE("blocks that predict further have PyTorch's losses and gradients", "[models][mtp]") {
  const int64_t depth = GENERATE(1, 3);
  const json golden = Golden(depth);
  const ModelOptions options = Options(depth, golden["loss_scale"]);
  const ModelSpec spec = MakeModel(options)->spec();
  const Program program = Lower(
      AddGradients(test::ForwardOf(options, HeadMode::kTrainLoss, DType::kF32, DType::kF32, kBatch),
                   Recompute::kNone),
      {.loss_chunk_rows = 5});
  test::ProgramInterpreter interpreter(program, CpuKernels());
  const double inv_valid = 1.0 / static_cast<double>(kBatch * options.seq_len);
  interpreter.scalars().inv_valid_tokens = inv_valid;
  interpreter.SetTokens(Tokens(options.seq_len, options.vocab, depth));
  int p = 0;
  std::vector<const ParamSpec*> params;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      interpreter.SetParam(ParamId{p}, ValuesOf(param, p));
      params.push_back(&param);
      ++p;
    }
  interpreter.Run();

  const double want = golden["loss"].get<double>() +
                      golden["loss_scale"].get<double>() * golden["mtp"].get<double>();
  CHECK(std::abs(interpreter.loss() * inv_valid - want) <= 1e-5);
  REQUIRE(params.size() == golden["grad"].size());
  for (size_t i = 0; i < params.size(); ++i) {
    const auto reference = golden["grad"].at(params[i]->name).get<std::vector<double>>();
    const std::vector<float> found = interpreter.Gradient(ParamId{static_cast<int32_t>(i)});
    REQUIRE(reference.size() == static_cast<size_t>(params[i]->numel()));
    double largest = 0, apart = 0;
    for (size_t j = 0; j < reference.size(); ++j) {
      largest = std::max(largest, std::abs(reference[j]));
      apart = std::max(apart, std::abs(found[j] - reference[j]));
    }
    CAPTURE(params[i]->name, apart, largest);
    CHECK(largest > 1e-4);
    CHECK(apart <= 1e-5 * largest + 1e-7);
  }
}

TEST_CASE("evaluation and generation compute no block that predicts further", "[models][mtp]") {
  const ModelOptions options = Options(3, 0.3);
  const auto further = [&](HeadMode head) {
    const SemanticGraph graph = test::ForwardOf(options, head, DType::kF32, DType::kF32, kBatch);
    return std::any_of(graph.forward.begin(), graph.forward.end(),
                       [](const Node& node) { return node.label.starts_with("mtp."); });
  };
  CHECK(further(HeadMode::kTrainLoss));
  CHECK_FALSE(further(HeadMode::kEvalLoss));
  CHECK_FALSE(further(HeadMode::kLogits));
}

}  // namespace
}  // namespace millrace
