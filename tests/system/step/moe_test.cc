// Mixtures of experts in models that train: proofs, recomputation, accumulation and ranks, on the
// CPU's kernels. Against PyTorch they are compared in tests/golden.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <span>

#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

// Two blocks: attention and experts, experts alone; sizes that divide nothing.
ModelOptions TinyMoe(const MoeShape& moe) {
  ModelOptions o = TinyLlama();
  o.blocks = {BlockShape{{AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 4}, moe}},
              BlockShape{{moe}}};
  o.init_std = 0.3;  // the choices differ from row to row
  return o;
}

MoeShape Softmax() { return {.experts = 5, .top_k = 2, .width = 7}; }
MoeShape Sigmoid() {
  return {.experts = 6,
          .top_k = 3,
          .width = 9,
          .activation = ActivationKind::kRelu2,
          .router = RouterKind::kSigmoid,
          .groups = 3,
          .top_groups = 2,
          .scaling = 2.5};
}

// Of sample `row` of the whole step.
std::vector<int32_t> TokensOf(int64_t row, int64_t seq, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(seq + 1));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((7 * static_cast<int64_t>(i * i) + 11 * row + 3) % vocab);
  return tokens;
}

struct Result {
  double loss = 0, norm = 0;
  double balance = 0;  // the sum of the auxiliary loss on rank 0
  std::map<std::string, std::vector<float>> gradients;
  bool operator==(const Result&) const = default;
};

// One step on the samples of `accumulate` microbatches; gradients of the last rank.
Result StepOf(const ModelOptions& options, const ModelRun& run) {
  Result result;
  const int64_t n = run.options.accumulate, rows = run.options.shape.batch,
                data = run.mesh.data_ranks();
  INFO("mesh " << ToString(run.mesh) << " batch " << rows);
  RunModel(*MakeModel(options), run, [&](Engine& engine, int rank) {
    std::vector<int32_t> tokens;
    for (int64_t m = 0; m < n; ++m)
      for (int64_t b = 0; b < rows; ++b)
        for (const int32_t id : TokensOf((m * data + run.mesh.Index(rank, kDataAxes)) * rows + b,
                                         run.options.shape.seq, options.vocab))
          tokens.push_back(id);
    const StepScalars scalars =
        engine.Step(HostInputs{{"tokens", std::as_bytes(std::span(tokens))}}, 0,
                    run.options.shape.seq * rows * n * data);
    const double balance = engine.LossSums().contains("balance") ? engine.LossSums()["balance"] : 0;
    if (rank == 0) result.balance = balance;
    auto gradients = FirstGradients(engine, run.options);
    if (rank == run.mesh.world() - 1) {
      result.loss = scalars.loss;
      result.norm = scalars.grad_norm;
      result.gradients = std::move(gradients);
    }
  });
  return result;
}

ModelRun RunOf(const Mesh& mesh, int accumulate) {
  ModelRun run;
  run.mesh = mesh;
  run.options.accumulate = accumulate;
  run.options.learning_rate.lr = 1e-3;
  return run;
}

TEST_CASE("experts train, and every recomputation has the same bits", "[system][moe]") {
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    ModelRun run = RunOf(Mesh(1, 2), 2);
    const Result saved = StepOf(TinyMoe(moe), run);
    CHECK(std::isfinite(saved.loss));
    for (const std::string name : {"router.weight", "experts.down.weight"}) {
      double largest = 0;
      for (const float g : saved.gradients.at("h.1.moe." + name))
        largest = std::max(largest, std::abs(static_cast<double>(g)));
      INFO(name);
      CHECK(largest > 1e-4);
    }
    for (const Recompute recompute : {Recompute::kNorms, Recompute::kBlock}) {
      run.recompute = recompute;
      INFO(Name(recompute));
      CHECK(StepOf(TinyMoe(moe), run) == saved);
    }
  }
}

// Of the same samples. Sums over rows in another order: each element is off by at most some units
// of the largest of its tensor.
void CheckNearly(const Result& got, const Result& want) {
  CHECK(got.loss == Approx(want.loss).epsilon(1e-6));
  for (const auto& [name, gradient] : want.gradients) {
    double scale = 0, apart = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      scale = std::max(scale, std::abs(static_cast<double>(gradient[i])));
      apart = std::max(apart, std::abs(static_cast<double>(gradient[i]) -
                                       static_cast<double>(got.gradients.at(name)[i])));
    }
    INFO(name << ": " << apart << " of " << scale);
    CHECK(scale > 0);
    CHECK(apart <= 64 * std::ldexp(scale, -24));
  }
}

TEST_CASE("a batch has one gradient, however it lies on microbatches and ranks", "[system][moe]") {
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    const Result whole = StepOf(TinyMoe(moe), RunOf(Mesh(1, 1), 4));
    CheckNearly(StepOf(TinyMoe(moe), RunOf(Mesh(1, 2), 2)), whole);
    CheckNearly(StepOf(TinyMoe(moe), RunOf(Mesh(1, 4), 1)), whole);
    CheckNearly(StepOf(TinyMoe(moe), RunOf(Mesh(2, 2), 1)), whole);
  }
}

const std::vector<AuxLossKind> kBalances = {AuxLossKind::kSwitch, AuxLossKind::kSequence,
                                            AuxLossKind::kPooled};

MoeShape Balanced(MoeShape moe, AuxLossKind kind, double coefficient) {
  moe.aux_loss = kind;
  moe.aux_coefficient = coefficient;
  return moe;
}

// With weights of zero every expert has the same probability. Then the loss does not depend on the
// choice: it is 1 for each of the two layers, or top_k for both together.
TEST_CASE("the auxiliary loss of even probabilities is its closed form", "[system][moe]") {
  const AuxLossKind kind = GENERATE(from_range(kBalances));
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    ModelOptions options = TinyMoe(Balanced(moe, kind, 0.5));
    options.init_std = 0;
    const double each = kind == AuxLossKind::kPooled ? static_cast<double>(moe.top_k) : 2;
    ModelRun run = RunOf(Mesh(1, 2), 3);
    run.options.shape = {.batch = 2, .seq = 7};
    const Result result = StepOf(options, run);
    INFO(Name(kind) << ", " << Name(moe.router));
    CHECK(result.balance == Approx(3 * 14 * each).epsilon(1e-6));  // of this rank's 42 rows
    CHECK(result.loss == Approx(std::log(37) + 0.5 * each).epsilon(1e-6));
  }
}

TEST_CASE("the auxiliary loss depends on the microbatch, not on the mesh", "[system][moe]") {
  const AuxLossKind kind = GENERATE(from_range(kBalances));
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    const auto on = [&](const Mesh& mesh, int64_t batch, double coefficient = 3,
                        int64_t strips = 1) {
      ModelRun run = RunOf(mesh, 2);
      run.options.shape = {.batch = batch, .seq = 8, .strips = strips};
      ModelOptions options = TinyMoe(Balanced(moe, kind, coefficient));
      options.seq_len = 8;
      options.tensor = mesh.Size(Axis::kTensor);
      options.expert = mesh.Size(Axis::kExpert);
      return StepOf(options, run);
    };
    INFO(Name(kind) << ", " << Name(moe.router));
    const Result whole = on(Mesh(1, 1), 4);
    CheckNearly(on(Mesh(1, 2), 2), whole);
    CheckNearly(on(Mesh(2, 2), 1), whole);
    CheckNearly(on(Mesh(1, 2).With(Axis::kContext, 2), 2), whole);
    if (moe.experts % 2 == 0) {
      CheckNearly(on(Mesh().With(Axis::kExpert, 2), 2), whole);
      CheckNearly(on(Mesh(1, 2).With(Axis::kExpert, 2), 1), whole);
    }
    // Of ranks that cut rows each has whole sequences; or all have a part of each.
    CheckNearly(on(Mesh(1, 2).With(Axis::kTensor, 2), 2), whole);
    CheckNearly(on(Mesh().With(Axis::kTensor, 2), 4, 3, 2), whole);
    CheckNearly(on(Mesh(1, 2).With(Axis::kTensor, 2), 2, 3, 4), whole);
    const Mesh both = Mesh().With(Axis::kContext, 2).With(Axis::kTensor, 2);
    CheckNearly(on(both, 4), whole);
    CheckNearly(on(both, 1), on(Mesh(1, 1), 1));
    if (kind == AuxLossKind::kSequence)
      CHECK_THROWS_WITH(on(Mesh().With(Axis::kTensor, 2), 3),
                        Catch::Contains("model.moe.aux_loss is sequence, and parallel.tensor 2 and "
                                        "parallel.tensor_strips 1 cut 3 sequences") &&
                            Catch::Contains("a micro_batch that is a multiple of 2 is allowed"));
    // It is in the gradient of the router, and of nothing behind the last one.
    const Result without = on(Mesh(1, 1), 4, 0);
    CHECK(without.gradients.at("h.1.moe.router.weight") !=
          whole.gradients.at("h.1.moe.router.weight"));
    CHECK(without.gradients.at("h.1.moe.experts.down.weight") ==
          whole.gradients.at("h.1.moe.experts.down.weight"));
  }
}

// Of the training loss at weights + step * direction, which has the weights' layout.
double LossAt(Engine& engine, const HostInputs& inputs, const ModelSpec& spec,
              const std::vector<std::vector<float>>& weights,
              const std::vector<std::vector<float>>& direction, double step) {
  for (size_t f = 0; f < weights.size(); ++f) {
    std::vector<float> moved = weights[f];
    for (size_t i = 0; i < moved.size(); ++i)
      moved[i] += static_cast<float>(step * static_cast<double>(direction[f][i]));
    engine.WriteShard("master", FlatId{static_cast<int32_t>(f)}, moved);
  }
  engine.EvalLossSum(inputs);
  double loss = 0;
  for (const LossSpec& each : spec.losses) loss += each.weight * engine.LossSums()[each.name];
  return loss / 14;
}

// Along the gradient g, scaled to length 1, the loss has the slope |g|; a wrong part of g anywhere
// makes it smaller. Central differences of f32 losses: noise of about 1e-7 on 2e-3, and 1e-6 |g|^2
// of curvature.
TEST_CASE("the loss falls along the gradient as fast as the gradient is long", "[system][moe]") {
  MoeShape shared = Sigmoid();
  shared.shared_width = 11;
  std::vector<ModelOptions> models;
  for (const MoeShape& moe :
       {Softmax(), Sigmoid(), shared, Balanced(Softmax(), kBalances[0], 2),
        Balanced(Sigmoid(), kBalances[1], 2), Balanced(Sigmoid(), kBalances[2], 2)})
    models.push_back(TinyMoe(moe));
  models.push_back(TinyMoe(Softmax()));
  models.back().blocks[0].Find<AttentionShape>()->window = 3;
  for (const ModelOptions& options : models) {
    INFO(Words(options));
    const std::unique_ptr<Model> model = MakeModel(options);
    ModelRun run = RunOf(Mesh(1, 1), 1);
    run.options.learning_rate.lr = 0;
    RunModel(*model, run, [&](Engine& engine, int) {
      std::vector<int32_t> tokens;
      for (const int64_t row : {0, 1})
        for (const int32_t id : TokensOf(row, 7, options.vocab)) tokens.push_back(id);
      const HostInputs inputs{{"tokens", std::as_bytes(std::span(tokens))}};
      const double norm = engine.Step(inputs, 0, 14).grad_norm;
      std::vector<std::vector<float>> weights, direction;
      for (size_t f = 0; f < engine.layout().flats.size(); ++f) {
        const FlatId id{static_cast<int32_t>(f)};
        weights.push_back(engine.ReadShard("master", id));
        direction.push_back(engine.ReadShard("adam_m", id));
        for (float& g : direction.back())
          g /= static_cast<float>((1 - run.options.adamw.beta1) * norm);
      }
      constexpr double kStep = 1e-3;
      const double slope = (LossAt(engine, inputs, model->spec(), weights, direction, kStep) -
                            LossAt(engine, inputs, model->spec(), weights, direction, -kStep)) /
                           (2 * kStep);
      CHECK(slope == Approx(norm).epsilon(1e-3));
    });
  }
}

// Two blocks behind the trunk that predict further, with experts.
ModelOptions Further(ModelOptions options) {
  options.mtp = {.depth = 2, .loss_scale = 0.25, .block = options.blocks.front()};
  return options;
}

TEST_CASE("experts of blocks that predict further are evened with the others", "[system][moe]") {
  const AuxLossKind kind = GENERATE(from_range(kBalances));
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    ModelOptions options = Further(TinyMoe(Balanced(moe, kind, 0.5)));
    options.init_std = 0;
    const double each = kind == AuxLossKind::kPooled ? static_cast<double>(moe.top_k) : 4;
    const Result even = StepOf(options, RunOf(Mesh(1, 2), 3));
    INFO(Name(kind) << ", " << Name(moe.router));
    CHECK(even.balance == Approx(3 * 14 * each).epsilon(1e-6));
    CHECK(even.loss == Approx(1.25 * std::log(37) + 0.5 * each).epsilon(1e-6));

    options = Further(TinyMoe(Balanced(moe, kind, 3)));
    const Result whole = StepOf(options, RunOf(Mesh(1, 1), 2));
    ModelRun run = RunOf(Mesh(1, 2), 2);
    run.options.shape.batch = 1;
    CheckNearly(StepOf(options, run), whole);
    // It is in the gradient of the last router, too.
    const Result without = StepOf(Further(TinyMoe(Balanced(moe, kind, 0))), RunOf(Mesh(1, 1), 2));
    CHECK(without.gradients.at("mtp.2.moe.router.weight") !=
          whole.gradients.at("mtp.2.moe.router.weight"));
  }
}

// Over all rows of a step: 2 sequences of 8 in each of `accumulate` microbatches of a data rank.
std::vector<float> TalliesOf(ModelOptions options, const Mesh& mesh, int64_t batch) {
  options.tensor = mesh.Size(Axis::kTensor);
  options.expert = mesh.Size(Axis::kExpert);
  options.seq_len = 8;
  ModelRun run = RunOf(mesh, static_cast<int>(12 / batch / mesh.data_ranks()));
  run.options.shape = {.batch = batch, .seq = 8};
  run.options.learning_rate.lr = 0;
  std::vector<float> tallies;
  RunModel(*MakeModel(options), run, [&](Engine& engine, int rank) {
    std::vector<int32_t> tokens;
    for (int64_t m = 0; m < run.options.accumulate; ++m)
      for (int64_t b = 0; b < batch; ++b)
        for (const int32_t id :
             TokensOf((m * mesh.data_ranks() + mesh.Index(rank, kDataAxes)) * batch + b, 8, 37))
          tokens.push_back(id);
    for (const int64_t step : {0, 1})  // of two, the second step's
      engine.Step(HostInputs{{"tokens", std::as_bytes(std::span(tokens))}}, step, 12 * 8);
    if (rank == 0) tallies.assign(engine.tallies().begin(), engine.tallies().end());
  });
  return tallies;
}

TEST_CASE("a step tallies loads and probabilities of all its rows, on any mesh", "[system][moe]") {
  for (const MoeShape& moe : {Softmax(), Sigmoid(), Balanced(Softmax(), kBalances[0], 0.5)}) {
    const size_t experts = static_cast<size_t>(moe.experts);
    const std::vector<float> whole = TalliesOf(TinyMoe(moe), Mesh(1, 1), 12);
    REQUIRE(whole.size() == 2 * 2 * experts);
    CHECK(TalliesOf(Further(TinyMoe(moe)), Mesh(1, 1), 12).size() == 4 * 2 * experts);
    for (size_t block = 0; block < 2; ++block) {
      double pairs = 0, rows = 0;
      for (size_t e = 0; e < experts; ++e) {
        pairs += static_cast<double>(whole[2 * block * experts + e]);
        rows += static_cast<double>(whole[(2 * block + 1) * experts + e]);
      }
      CHECK(pairs == static_cast<double>(12 * 8 * moe.top_k));
      CHECK(rows == Approx(12 * 8).epsilon(1e-6));
    }
    const auto check = [&](const Mesh& mesh, int64_t batch) {
      INFO(Name(moe.router) << ", mesh " << ToString(mesh) << ", batch " << batch);
      const std::vector<float> got = TalliesOf(TinyMoe(moe), mesh, batch);
      REQUIRE(got.size() == whole.size());
      for (size_t i = 0; i < got.size(); ++i) {
        INFO(i);
        if (i / experts % 2 == 0)
          CHECK(got[i] == whole[i]);
        else  // sums of 96 probabilities
          CHECK(got[i] == Approx(whole[i]).epsilon(1e-5));
      }
    };
    check(Mesh(1, 1), 4);
    check(Mesh(1, 2), 3);
    check(Mesh(2, 2), 3);
    check(Mesh().With(Axis::kTensor, 2), 6);
    check(Mesh(1, 2).With(Axis::kContext, 2), 2);
    if (moe.experts % 2 != 0) continue;
    check(Mesh().With(Axis::kExpert, 2), 6);
    check(Mesh(1, 2).With(Axis::kExpert, 2), 3);
  }
}

TEST_CASE("the balanced gate loads experts evenly, and the router's weights have gradients",
          "[system][moe]") {
  for (MoeShape moe : {Softmax(), Sigmoid()}) {
    moe.gate = GateKind::kBalanced;
    const size_t experts = static_cast<size_t>(moe.experts);
    const std::vector<float> tallies = TalliesOf(TinyMoe(moe), Mesh(1, 1), 12);
    for (size_t block = 0; block < 2; ++block) {
      const auto begin = tallies.begin() + static_cast<std::ptrdiff_t>(2 * block * experts);
      const auto [least, most] =
          std::minmax_element(begin, begin + static_cast<std::ptrdiff_t>(experts));
      CHECK(*most - *least <= 1);
    }
    double largest = 0;
    const Result step = StepOf(TinyMoe(moe), RunOf(Mesh(1, 2), 2));
    for (const float g : step.gradients.at("h.0.moe.router.weight"))
      largest = std::max(largest, std::abs(static_cast<double>(g)));
    CHECK(largest > 1e-4);
  }
}

TEST_CASE("a balanced gate is another model", "[moe]") {
  ModelOptions options = TinyMoe(Softmax());
  const std::string identity = Identity(options), words = ToString(options.blocks[0]);
  CHECK(identity.find("gate") == identity.npos);
  for (BlockShape& block : options.blocks) block.Find<MoeShape>()->gate = GateKind::kBalanced;
  CHECK(Identity(options) != identity);
  CHECK(ToString(options.blocks[0]) == words + " gate balanced");
}

TEST_CASE("blocks whose auxiliary losses differ are refused", "[moe]") {
  ModelOptions options = TinyMoe(Softmax());
  options.blocks[1] = {{Sigmoid()}};
  CHECK(MakeModel(options)->spec().losses.size() == 1);  // none: they may differ otherwise
  options.blocks[1] = {{Balanced(Softmax(), AuxLossKind::kSwitch, 0.5)}};
  CHECK_THROWS_WITH(MakeModel(options), Catch::Contains("switch, coefficient 0.5, 2 of 5 experts"));
  const MoeShape pooled = Balanced(Softmax(), AuxLossKind::kPooled, 0.5);
  options.blocks[0] = {{AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 4}, pooled}};
  CHECK_THROWS_WITH(MakeModel(options), Catch::Contains("another's pooled, 0.5, 2 of 5"));
}

}  // namespace
}  // namespace millrace::test
