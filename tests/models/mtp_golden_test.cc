// A block that predicts one token further against PyTorch, written by hand: its loss, which is a
// mean over its own targets, and every gradient, shared embedding and head included
// (tests/golden/make_mtp.py).
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

json Golden() {
  std::ifstream in("tests/golden/mtp_tiny/golden.json");
  REQUIRE(in.good());
  return json::parse(in);
}

ModelOptions Options(double loss_scale) {
  ModelOptions options = test::TinyQwen3(2);
  options.mtp = {.depth = 1, .loss_scale = loss_scale, .block = options.blocks.front()};
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

// Windows of T + 1 tokens, and the -1 behind each.
std::vector<int32_t> Tokens(int64_t length, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i <= length; ++i)
      tokens.push_back(static_cast<int32_t>((7 * i + i * i % 11 + 5 * b) % vocab));
    tokens.push_back(-1);
  }
  return tokens;
}

TEST_CASE("a block that predicts further has PyTorch's loss and gradients", "[models][mtp]") {
  const json golden = Golden();
  const ModelOptions options = Options(golden["loss_scale"]);
  const ModelSpec spec = MakeModel(options)->spec();
  const Program program = Lower(
      AddGradients(test::ForwardOf(options, HeadMode::kTrainLoss, DType::kF32, DType::kF32, kBatch),
                   Recompute::kNone),
      {.loss_chunk_rows = 5});
  test::ProgramInterpreter interpreter(program, CpuKernels());
  const double inv_valid = 1.0 / static_cast<double>(kBatch * options.seq_len);
  interpreter.scalars().inv_valid_tokens = inv_valid;
  interpreter.SetTokens(Tokens(options.seq_len, options.vocab));
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

}  // namespace
}  // namespace millrace
