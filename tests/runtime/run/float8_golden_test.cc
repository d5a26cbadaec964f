// Linears in FP8 against PyTorch's own float8 types in float64: logits, every gradient and ten
// losses (tests/golden/make_fp8.py, which derives the bounds).
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/data/safetensors/safetensors.h"
#include "tests/runtime/run/golden_data.h"

namespace millrace {
namespace {

using test::Golden;
using Values = std::vector<double>;

// What the script found of one encoding.
struct Encoding {
  Values logits;
  test::Tensors grads;

  Encoding(const Golden& golden, const std::string& name) {
    const SafetensorsFile file(golden.folder + "/fp8.safetensors");
    for (const TensorInfo& tensor : file.tensors()) {
      if (!tensor.spec.name.starts_with(name + ".")) continue;
      MR_CHECK(tensor.spec.dtype == "F32", "{} is {}", tensor.spec.name, tensor.spec.dtype);
      std::vector<float> stored(static_cast<size_t>(tensor.numel));
      file.ReadBytes(tensor, 0, tensor.bytes, stored.data());
      const std::string of = tensor.spec.name.substr(name.size() + 1);
      Values& values = of == "logits" ? logits : grads[of.substr(std::string("grad.").size())];
      values.assign(stored.begin(), stored.end());
    }
  }
};

// The root of the mean square of differences; NaN where sizes are.
double Apart(const Values& a, const Values& b) {
  if (a.size() != b.size() || a.empty()) return NAN;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST_CASE("linears in FP8 have the logits, gradients and losses of PyTorch's float8 types",
          "[golden]") {
  const Golden golden(GENERATE("gpt2_fp8", "llama_fp8"));
  const std::string name = GENERATE("fp8_tensor", "fp8_block");
  CAPTURE(golden.folder, name);
  const auto& want = golden.json["encodings"][name];
  const Encoding reference(golden, name);
  const std::vector<std::string> sets = {"precision.linear=" + name};
  const test::Spread whole{.micro_batch = golden.batch};

  const test::FirstStep first = test::RunFirstStep(golden, whole, sets);
  const double logits_bound = want["bound"]["logits"];
  CHECK(Apart(first.logits, reference.logits) <= logits_bound);
  CHECK(Apart(first.logits, golden.logits) > 4 * logits_bound);  // FP8 is at work
  CHECK(first.grads.size() == reference.grads.size());
  for (const auto& [tensor, values] : reference.grads) {
    const auto found = first.grads.find(tensor);
    REQUIRE(found != first.grads.end());
    CAPTURE(tensor);
    CHECK(Apart(found->second, values) <= want["bound"]["grad"][tensor].get<double>());
  }

  const test::Trajectory run = test::RunTrajectory(golden, whole, sets);
  REQUIRE(run.loss.size() == want["loss"].size());
  for (size_t step = 0; step < run.loss.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(run.loss[step] - want["loss"][step].get<double>()) <=
          want["bound"]["loss"][step].get<double>());
  }
}

}  // namespace
}  // namespace millrace
