// The trainer against PyTorch: logits, every gradient, ten losses and the parameters after them
// (tests/golden/README.md, which argues the tolerances).
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>

#include "runtime/exec/engine.h"
#include "tests/runtime/run/golden_data.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using test::AllLogits;
using test::FirstStep;
using test::Golden;
using test::RunFirstStep;
using test::RunTrajectory;
using test::Spread;
using test::Tensors;
using test::Trajectory;

// The largest difference of one tensor, and what is allowed.
struct Difference {
  std::string what;
  double found = 0, allowed = 0;
};

// Tensors whose difference is not within what is allowed; NaN is not.
std::vector<std::string> Outside(const std::vector<Difference>& differences) {
  std::vector<std::string> outside;
  for (const Difference& d : differences)
    if (!(d.found <= d.allowed))
      outside.push_back(fmt::format("{}: {:.3g}, allowed {:.3g}", d.what, d.found, d.allowed));
  return outside;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= largest)) largest = d;  // keeps a NaN
    if (std::isnan(largest)) return largest;
  }
  return largest;
}

double LargestOf(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

// fp32: 1e-5 of the largest value in the unit, and twice PyTorch's own float32 error of this
// tensor.
double Fp32Bound(double unit_max, double pytorch_error) {
  return std::min(1e-5 * unit_max, 2 * pytorch_error);
}

// The largest of `values` (by tensor) in each unit.
std::map<std::string, double> ByUnit(const Golden& golden, const nlohmann::json& values) {
  std::map<std::string, double> largest;
  for (const auto& [name, unit] : golden.json["unit"].items()) {
    double& so_far = largest[unit.get<std::string>()];
    so_far = std::max(so_far, values.at(name).get<double>());
  }
  return largest;
}

Difference CompareLogits(const Golden& golden, const std::vector<double>& logits, bool bf16) {
  const double allowed =
      bf16 ? golden.json["bf16_bound"]["logits"].get<double>()
           : Fp32Bound(golden.json["logits_max"], golden.json["fp32"]["err"]["logits"]);
  return {"logits", LargestDifference(logits, golden.logits), allowed};
}

// transformers' own error of a tensor. Of experts, whose matrices are one parameter and which have
// few tokens each, the largest of the layer's: a single expert's is too small a sample of rounding.
double TheirError(const Golden& golden, const std::string& name) {
  const auto& errors = golden.json["fp32"]["err"]["grad"];
  const size_t begin = name.find(".experts.");
  if (begin == name.npos) return errors[name];
  const size_t number = begin + std::string(".experts.").size(), end = name.find('.', number);
  double largest = 0;
  for (int expert = 0;; ++expert) {
    const auto found =
        errors.find(name.substr(0, number) + std::to_string(expert) + name.substr(end));
    if (found == errors.end()) return largest;
    largest = std::max(largest, found->get<double>());
  }
}

std::vector<Difference> CompareGrads(const Golden& golden, const Tensors& grads, bool bf16) {
  std::vector<Difference> differences;
  for (const auto& [name, reference] : golden.grads) {
    const std::string unit = golden.json["unit"][name];
    const double allowed =
        bf16 ? golden.json["bf16_bound"]["grad"][name].get<double>()
             : Fp32Bound(golden.json["unit_grad_max"][unit], TheirError(golden, name));
    const auto found = grads.find(name);
    differences.push_back(
        {name,
         LargestDifference(found == grads.end() ? std::vector<double>() : found->second, reference),
         allowed});
  }
  return differences;
}

// Parameters after ten steps: 1e-5 of the largest parameter in the unit. A wrong direction of one
// element in one step is lr, a thousand times that. Twice PyTorch's error is no bound here: Adam
// magnifies the noise of an element by lr / |gradient|, so the element with the smallest gradient
// decides both errors (README).
std::vector<Difference> CompareParams(const Golden& golden, Tensors params) {
  nlohmann::json largest;
  for (const auto& [name, reference] : golden.params) largest[name] = LargestOf(reference);
  const std::map<std::string, double> unit_max = ByUnit(golden, largest);
  std::vector<Difference> differences;
  for (const auto& [name, whole] : golden.params) {
    std::vector<double> reference = whole;
    if (golden.json["shift_invariant"].contains(
            name)) {  // exact gradient 0: Adam normalises rounding noise (README)
      const auto range = golden.json["shift_invariant"][name].get<std::vector<size_t>>();
      for (size_t i = range.at(0); i < range.at(1); ++i) reference.at(i) = params[name].at(i) = 0;
    }
    differences.push_back({name, LargestDifference(params[name], reference),
                           1e-5 * unit_max.at(golden.json["unit"][name])});
  }
  return differences;
}

std::vector<Difference> PerStep(const std::string& what, const std::vector<double>& found,
                                const nlohmann::json& reference,
                                const std::function<double(size_t step, double value)>& allowed) {
  std::vector<Difference> differences;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double value = reference[i];
    const double d =
        i < found.size() ? std::abs(found[i] - value) : std::numeric_limits<double>::infinity();
    differences.push_back({fmt::format("{} of step {}", what, i), d, allowed(i, value)});
  }
  return differences;
}

const std::vector<std::string> kModels = {
    "gpt2_tiny",      "llama_tiny",      "llama_tied_tiny",       "qwen3_tiny",
    "qwen3_moe_tiny", "nemotron_h_tiny", "nemotron_h_mamba_tiny", "nemotron_h_moe_tiny"};

// Where rounding moves results a little. It may move a token to another expert: in the random
// rounding of the reference it does, and the bound is as wide as the results.
const std::vector<std::string> kSmoothModels = {"gpt2_tiny",       "llama_tiny",
                                                "llama_tied_tiny", "qwen3_tiny",
                                                "nemotron_h_tiny", "nemotron_h_mamba_tiny"};

const std::vector<Spread> kSpreads = {
    {.micro_batch = 3},
    {.micro_batch = 1, .accumulate = 3},
    {.shard = 2, .micro_batch = 3},  // every row twice, in another order on each rank
    {.shard = 3, .micro_batch = 1},
    {.replicate = 2, .shard = 2, .micro_batch = 3},
    {.replicate = 3, .micro_batch = 1},
};

// The same models split over ranks: by heads and columns, and by rows of each sequence.
const std::vector<Spread> kSplits = {
    {.micro_batch = 3},
    {.micro_batch = 3, .tensor = 2},
    {.micro_batch = 3, .tensor = 3},
    {.micro_batch = 1, .accumulate = 3, .tensor = 3, .strips = 2},
    {.shard = 2, .micro_batch = 3, .tensor = 2, .strips = 3},
    {.micro_batch = 3, .context = 2},
    {.micro_batch = 1, .accumulate = 3, .context = 3},
    {.replicate = 3, .micro_batch = 1, .context = 2},
    {.micro_batch = 3, .context = 2, .tensor = 2},
};

using Strings = std::vector<std::string>;

void CheckFirstStep(const Golden& golden, const Spread& spread) {
  if (!test::HaveDevices(spread.world())) return;
  CAPTURE(golden.folder, spread.Text());
  const FirstStep first = RunFirstStep(golden, spread, {});
  CHECK(Outside({CompareLogits(golden, first.logits, false)}) == Strings{});
  CHECK(first.grads.size() == golden.grads.size());
  CHECK(Outside(CompareGrads(golden, first.grads, false)) == Strings{});
}

TEST_CASE(
    "logits and every gradient of step 0 are PyTorch's to float32 rounding, on any number of ranks",
    "[golden]") {
  const Golden golden(GENERATE(from_range(kModels)));
  CheckFirstStep(golden, GENERATE(from_range(kSpreads)));
}

TEST_CASE("logits and gradients of a model that is split over ranks are PyTorch's", "[golden]") {
  const Golden golden(GENERATE("gpt2_split", "llama_split", "llama_shared"));
  CheckFirstStep(golden, GENERATE(from_range(kSplits)));
}

Trajectory CheckTrajectory(const Golden& golden, const Spread& spread) {
  if (!test::HaveDevices(spread.world())) return {};
  CAPTURE(golden.folder, spread.Text());
  Trajectory run = RunTrajectory(golden, spread, {});
  const auto& json = golden.json;
  CHECK(Outside(PerStep("loss", run.loss, json["loss"], [](size_t, double) { return 1e-5; })) ==
        Strings{});
  CHECK(Outside(PerStep("grad norm", run.grad_norm, json["grad_norm"],
                        [](size_t, double norm) { return 1e-5 * norm; })) == Strings{});
  CHECK(Outside(PerStep("lr", run.lr, json["lr"], [](size_t, double lr) { return 1e-12 * lr; })) ==
        Strings{});
  CHECK(Outside(CompareParams(golden, run.params)) == Strings{});
  return run;
}

TEST_CASE("ten losses, norms and learning rates, and the parameters after them, are PyTorch's",
          "[golden]") {
  const Golden golden(GENERATE(from_range(kModels)));
  CheckTrajectory(golden, GENERATE(from_range(kSpreads)));
}

TEST_CASE("ten steps of a model that is split over ranks are PyTorch's", "[golden]") {
  const Golden golden(GENERATE("gpt2_split", "llama_split", "llama_shared"));
  CheckTrajectory(golden, GENERATE(from_range(kSplits)));
}

TEST_CASE("ten steps by Muon beside AdamW are PyTorch's", "[golden][muon]") {
  const Golden golden = Golden::WithMuon(GENERATE("gpt2_tiny", "llama_tied_tiny", "llama_tiny"));
  CheckTrajectory(golden, GENERATE(from_range(kSpreads)));
}

TEST_CASE("ten steps with groups of parameters are PyTorch's, and what is frozen keeps its bits",
          "[golden][groups]") {
  const Golden golden = Golden::WithGroups(GENERATE("gpt2_tiny", "llama_tied_tiny", "llama_tiny"));
  const Trajectory run = CheckTrajectory(golden, GENERATE(from_range(kSpreads)));
  if (run.loss.empty()) return;
  for (const std::string name : golden.json.at("frozen")) {
    CAPTURE(name);
    CHECK(run.params.at(name) == golden.params.at(name));
  }
}

void CheckBf16(const Golden& golden, const Spread& spread, const std::string& norms) {
  if (!test::HaveDevices(spread.world())) return;
  CAPTURE(golden.folder, spread.Text(), norms);
  const std::vector<std::string> sets = {"precision.compute=bf16", norms};
  const FirstStep first = RunFirstStep(golden, spread, sets);
  const Difference logits = CompareLogits(golden, first.logits, true);
  CHECK(Outside({logits}) == Strings{});
  CHECK(logits.found > 1e-5 * golden.json["logits_max"].get<double>());  // bf16 is at work
  CHECK(Outside(CompareGrads(golden, first.grads, true)) == Strings{});
  const Trajectory run = RunTrajectory(golden, spread, sets);
  const auto& bound = golden.json["bf16_bound"]["loss"];
  CHECK(Outside(PerStep("loss", run.loss, golden.json["loss"], [&](size_t step, double) {
          return bound[step].get<double>();
        })) == Strings{});
}

TEST_CASE("in bf16, logits, gradients and losses stay within the bounds derived for bf16 storage",
          "[golden]") {
  const std::string norms = GENERATE("precision.norms=fp32", "precision.norms=compute");
  const Spread whole{.micro_batch = 3}, shard{.shard = 3, .micro_batch = 1};
  for (const std::string& model : kSmoothModels)
    for (const Spread& spread : {whole, shard}) CheckBf16(Golden(model), spread, norms);
  const Spread tensor{.micro_batch = 3, .tensor = 3}, context{.micro_batch = 3, .context = 2};
  for (const char* model : {"gpt2_split", "llama_split", "llama_shared"})
    for (const Spread& spread : {tensor, context}) CheckBf16(Golden(model), spread, norms);
}

// tests/golden/make_fp16.py derives the bounds. At this scale every gradient that matters is a
// normal number of fp16's, and none overflows.
void CheckFp16(const std::string& model, const Spread& spread, const std::string& norms) {
  if (!test::HaveDevices(spread.world())) return;
  Golden golden(model);
  CAPTURE(golden.folder, spread.Text(), norms);
  const nlohmann::json bound =
      nlohmann::json::parse(std::ifstream("tests/golden/fp16/" + model + ".json")).at("bound");
  golden.json["bf16_bound"] = bound;
  const std::vector<std::string> sets = {"precision.compute=fp16",
                                         "precision.loss_scale.init_scale=4096", norms};
  const FirstStep first = RunFirstStep(golden, spread, sets);
  const Difference logits = CompareLogits(golden, first.logits, true);
  CHECK(Outside({logits}) == Strings{});
  CHECK(logits.found > 1e-5 * golden.json["logits_max"].get<double>());  // fp16 is at work
  CHECK(Outside(CompareGrads(golden, first.grads, true)) == Strings{});
  const Trajectory run = RunTrajectory(golden, spread, sets);
  CHECK(Outside(PerStep("loss", run.loss, golden.json["loss"], [&](size_t step, double) {
          return bound["loss"][step].get<double>();
        })) == Strings{});
  CHECK(std::abs(run.grad_norm[0] - golden.json["grad_norm"][0].get<double>()) <=
        bound["grad_norm"].get<double>());
}

TEST_CASE("in fp16, logits, gradients, norm and losses stay within the bounds derived for it",
          "[golden][fp16]") {
  const std::string norms = GENERATE("precision.norms=fp32", "precision.norms=compute");
  const Spread whole{.micro_batch = 3}, shard{.shard = 3, .micro_batch = 1};
  for (const char* model : {"gpt2_tiny", "llama_tiny", "llama_tied_tiny", "qwen3_tiny"})
    for (const Spread& spread : {whole, shard}) CheckFp16(model, spread, norms);
  if (!test::TestRanks().captures())  // GPUs have no mixers in fp16
    for (const Spread& spread : {whole, shard}) CheckFp16("nemotron_h_tiny", spread, norms);
  const Spread tensor{.micro_batch = 3, .tensor = 3};
  for (const char* model : {"gpt2_split", "llama_split"}) CheckFp16(model, tensor, norms);
}

TEST_CASE("the comparison notices one weight that is off by 1e-4", "[golden]") {
  const Golden golden(GENERATE(from_range(kModels)));
  const Spread spread{.micro_batch = 3};
  std::vector<double> logits;
  test::RunSessions(
      test::GoldenConfig(golden, spread), 1, {"train", "generate"}, [&](Session& session) {
        std::vector<float> shard = session.engine().ReadShard("master", FlatId{1});  // of block 0
        const auto largest = std::max_element(shard.begin(), shard.end());
        *largest += 1e-4f;
        session.engine().WriteShard("master", FlatId{1}, shard);
        logits = AllLogits(session, golden);
      });
  CHECK(Outside({CompareLogits(golden, logits, false)}).size() == 1);
}

}  // namespace
}  // namespace millrace
