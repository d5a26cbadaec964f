// Balancing without a loss: after each step that is applied, the bias of each expert moves against
// its load in that step, whatever the mesh.
#include <catch2/catch.hpp>
#include <set>
#include <span>
#include <variant>

#include "runtime/exec/logical_tensors.h"
#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

constexpr float kRate = 0x1p-6f;  // sums of some are exact

MoeShape Biased(RouterKind router, int64_t experts, int64_t top_k) {
  return {.experts = experts,
          .top_k = top_k,
          .width = 7,
          .router = router,
          .bias = true,
          .bias_rate = kRate};
}

// Attention and experts, then experts of another number.
ModelOptions TinyBiased(RouterKind router) {
  ModelOptions o = TinyLlama();
  o.blocks = {
      BlockShape{{AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 4}, Biased(router, 5, 2)}},
      BlockShape{{Biased(router, 6, 3)}}};
  o.seq_len = 8;
  o.init_std = 0.3;  // the choices differ from row to row
  return o;
}

using Biases = std::map<std::string, std::vector<float>>;

Biases BiasesOf(Engine& engine) {
  Biases biases;
  ForEachLogicalTensor(engine, "master",
                       [&](const ParamPlacement& param, std::span<const float> values) {
                         if (param.spec.update == UpdateRule::kBalance)
                           biases[param.spec.name] = {values.begin(), values.end()};
                       });
  return biases;
}

// Of sample `row` of step `step`.
void AddTokens(int64_t step, int64_t row, std::vector<int32_t>* tokens) {
  for (int64_t i = 0; i < 9; ++i)
    tokens->push_back(static_cast<int32_t>((7 * i * i + 11 * row + 5 * step * (i + 1) + 3) % 37));
}

// The biases after each of `steps` steps of 12 sequences, `batch` of them in a microbatch of a data
// rank. `change`: what is done to a step's scalars.
std::vector<Biases> BiasesAfter(
    ModelOptions options, const Mesh& mesh, int64_t batch, int64_t steps,
    const std::function<void(StepScalars&)>& change = [](StepScalars&) {}) {
  options.tensor = mesh.Size(Axis::kTensor);
  options.expert = mesh.Size(Axis::kExpert);
  ModelRun run;
  run.mesh = mesh;
  run.options.shape = {.batch = batch, .seq = 8};
  run.options.accumulate = static_cast<int>(12 / batch / mesh.data_ranks());
  run.options.learning_rate.lr = 1e-3;
  run.options.clip = 1e-4;  // of gradients, not of loads
  std::vector<Biases> after;
  RunModel(*MakeModel(options), run, [&](Engine& engine, int rank) {
    const int64_t data = mesh.data_ranks(), place = mesh.Index(rank, kDataAxes);
    engine.OnScalars(change);
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<int32_t> tokens;
      for (int64_t m = 0; m < run.options.accumulate; ++m)
        for (int64_t b = 0; b < batch; ++b)
          AddTokens(step, (m * data + place) * batch + b, &tokens);
      engine.Step(HostInputs{{"tokens", std::as_bytes(std::span(tokens))}}, step, 12 * 8);
      const Biases biases = BiasesOf(engine);
      if (rank == 0) after.push_back(biases);
    }
  });
  return after;
}

// Of equal scores the lower index is first: all rows choose the experts of the largest biases.
TEST_CASE("equal scores choose by the bias, which follows the loads by hand", "[system][moe]") {
  for (const RouterKind router : {RouterKind::kSoftmax, RouterKind::kSigmoid}) {
    ModelOptions options = TinyBiased(router);
    options.init_std = 0;  // and every gradient is zero
    for (const auto& [mesh, batch] : {std::pair{Mesh(1, 1), 4}, {Mesh(1, 2), 2}, {Mesh(2, 1), 6}}) {
      INFO(Name(router) << ", mesh " << ToString(mesh));
      Biases want = {{"h.0.moe.router.bias", {0, 0, 0, 0, 0}},
                     {"h.1.moe.router.bias", {0, 0, 0, 0, 0, 0}}};
      for (const Biases& got : BiasesAfter(options, mesh, batch, 4)) {
        for (auto& [name, bias] : want) {
          const size_t top_k = bias.size() / 2;  // below E / 2 and at it: the mean is none's load
          std::vector<size_t> order(bias.size());
          for (size_t e = 0; e < order.size(); ++e) order[e] = e;
          std::stable_sort(order.begin(), order.end(),
                           [&](size_t a, size_t b) { return bias[a] > bias[b]; });
          for (size_t i = 0; i < order.size(); ++i) bias[order[i]] += i < top_k ? -kRate : kRate;
        }
        CHECK(got == want);
      }
    }
  }
}

TEST_CASE("a bias has the same bits on every mesh", "[system][moe]") {
  for (const RouterKind router : {RouterKind::kSoftmax, RouterKind::kSigmoid}) {
    const ModelOptions options = TinyBiased(router);
    const std::vector<Biases> whole = BiasesAfter(options, Mesh(1, 1), 12, 3);
    std::set<float> seen;
    for (const auto& [name, bias] : whole.back()) seen.insert(bias.begin(), bias.end());
    CHECK(seen.size() >= 3);  // loads go up and down
    const auto check = [&](const Mesh& mesh, int64_t batch) {
      INFO(Name(router) << ", mesh " << ToString(mesh) << ", batch " << batch);
      CHECK(BiasesAfter(options, mesh, batch, 3) == whole);
    };
    check(Mesh(1, 1), 4);
    check(Mesh(1, 2), 6);
    check(Mesh(1, 2), 2);
    check(Mesh(2, 1), 6);
    check(Mesh(2, 2), 3);
    check(Mesh().With(Axis::kTensor, 2), 12);
    check(Mesh(1, 2).With(Axis::kContext, 2), 2);
  }
}

TEST_CASE("so it has where experts are on ranks of their own", "[system][moe][expert]") {
  ModelOptions options = TinyBiased(RouterKind::kSigmoid);
  std::get<MoeShape>(options.blocks[0].branches[1]).experts = 12;
  const std::vector<Biases> whole = BiasesAfter(options, Mesh(1, 1), 12, 3);
  for (const auto& [mesh, batch] : {std::pair{Mesh().With(Axis::kExpert, 2), 6},
                                    {Mesh().With(Axis::kExpert, 3), 2},
                                    {Mesh(1, 2).With(Axis::kExpert, 2), 3},
                                    {Mesh(2, 1).With(Axis::kExpert, 2), 1}}) {
    INFO("mesh " << ToString(mesh) << ", batch " << batch);
    CHECK(BiasesAfter(options, mesh, batch, 3) == whole);
  }
}

TEST_CASE("loads are in no gradient's norm", "[system][moe]") {
  // Biases of zero choose as none do: the first step's gradient is that of a model without.
  const auto norm = [](bool bias) {
    ModelOptions options = TinyBiased(RouterKind::kSigmoid);
    for (BlockShape& block : options.blocks) block.Find<MoeShape>()->bias = bias;
    ModelRun run;
    run.mesh = Mesh(2, 2);
    run.options.shape = {.batch = 3, .seq = 8};
    double norm = 0;
    RunModel(*MakeModel(options), run, [&](Engine& engine, int rank) {
      std::vector<int32_t> tokens;
      for (int64_t b = 0; b < 3; ++b) AddTokens(0, 3 * rank + b, &tokens);
      const StepScalars scalars =
          engine.Step(HostInputs{{"tokens", std::as_bytes(std::span(tokens))}}, 0, 12 * 8);
      if (rank == 0) norm = scalars.grad_norm;
    });
    return norm;
  };
  CHECK(norm(true) == norm(false));
  CHECK(norm(true) > 0);
}

TEST_CASE("a step that is not applied moves no bias", "[system][moe]") {
  const ModelOptions options = TinyBiased(RouterKind::kSigmoid);
  const auto skips = [&](const std::function<void(StepScalars&)>& fault) {
    const std::vector<Biases> after =
        BiasesAfter(options, Mesh(1, 2), 3, 3, [&](StepScalars& scalars) {
          if (scalars.step == 1) fault(scalars);
        });
    CHECK(after[1] == after[0]);
    CHECK(after[2] != after[1]);
  };
  skips([](StepScalars& scalars) { scalars.inject_loss_nan = 1; });
  skips([](StepScalars& scalars) { scalars.inject_grad_unit = 0; });
  skips([](StepScalars& scalars) { scalars.max_loss = 1e-3; });
}

TEST_CASE("counts stay f32 where gradients are bf16, and routers' biases are one flat",
          "[system][moe]") {
  ModelOptions options = TinyBiased(RouterKind::kSigmoid);
  options.blocks[1] = options.blocks[0];
  const PrecisionPolicy bf16{DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16};
  const ShardLayout layout = PlanShards(MakeModel(options)->spec(), Mesh(1, 2), bf16);
  int64_t biases = 0;
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatId id{static_cast<int32_t>(f)};
    const bool counts = layout.flat(id).key.update == UpdateRule::kBalance;
    biases += counts;
    CHECK(layout.PrecisionOf(id).grad_wire == (counts ? DType::kF32 : DType::kBF16));
    CHECK(layout.PrecisionOf(id).grad_accumulate == (counts ? DType::kF32 : DType::kBF16));
    if (counts) CHECK(layout.flat(id).name == "norms@balance");
    if (counts) CHECK(layout.flat(id).params.size() == 2);
  }
  CHECK(biases == 1);
}

}  // namespace
}  // namespace millrace::test
