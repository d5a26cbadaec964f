// Several losses in one step: each has a cell of its own, and they add with their weights, in the
// loss and in every gradient. Against runs of each loss alone.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"
#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

constexpr int64_t kVocab = 37, kWidth = 10;

// A trunk of one block, and for each loss a head that reads the embedding's table and the trunk's
// output; the second through a norm of its own as well. The second's targets are an input of their
// own.
class TwoHeads final : public Model {
 public:
  explicit TwoHeads(std::vector<LossSpec> losses) {
    const auto param = [](std::string name, std::vector<int64_t> dims, ParamKind kind) {
      ParamSpec p{.name = std::move(name), .dims = dims, .padded_rows = dims[0]};
      p.kind = kind;
      if (kind == ParamKind::kNorm)
        p.init = InitKind::kOnes;
      else
        p.init_std = 0.5;
      return p;
    };
    spec_.family = "two_heads";
    spec_.units = {
        {"embed", {param("table", {kVocab, kWidth}, ParamKind::kMatrix)}, UnitRole::kEmbedding},
        {"trunk",
         {param("norm", {kWidth}, ParamKind::kNorm),
          param("w", {kWidth, kWidth}, ParamKind::kMatrix)},
         UnitRole::kBlock},
        {"head", {param("aux_norm", {kWidth}, ParamKind::kNorm)}, UnitRole::kHead}};
    spec_.inputs = {{.name = "tokens", .source = "tokens"},
                    {.name = "targets", .source = "tokens", .shift = 1},
                    {.name = "labels", .source = "labels"}};
    spec_.losses = std::move(losses);
    spec_.vocab = spec_.padded_vocab = kVocab;
  }
  const ModelSpec& spec() const override { return spec_; }

  void EmitForward(ForwardBuilder& b, HeadMode mode) const override {
    b.BeginUnit("embed");
    ValueId x = Embedding(b, "table", "", "embed/x");
    b.BeginUnit("trunk");
    x = Add(b, x, Linear(b, Norm(b, x, "norm", "", NormKind::kRms, 1e-5f, "norm"), "w", "", "w"),
            "add");
    b.BeginUnit("head");
    for (const LossSpec& loss : spec_.losses) {
      const bool aux = loss.name == "aux";
      const ValueId y = Norm(b, x, "aux_norm", "", NormKind::kRms, 1e-5f, "norm." + loss.name);
      Head(b, aux ? Add(b, y, x, "sum." + loss.name) : x, "table", mode, loss.name);
    }
  }

 private:
  ModelSpec spec_;
};

const LossSpec kMain{.name = "main"}, kAux{.name = "aux", .weight = 0.3, .targets = "labels"};

LossSpec Alone(LossSpec loss) {
  loss.weight = 1;
  return loss;
}

// Of `microbatches`, encoding rank and index; `extra` columns beyond the sequence.
std::vector<int32_t> Ids(int64_t microbatches, int64_t extra, int salt, int rank) {
  std::vector<int32_t> ids(static_cast<size_t>(microbatches * 2 * (7 + extra)));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] =
        static_cast<int32_t>((5 * i + i * i % 13 + 17 * static_cast<size_t>(rank + salt)) % kVocab);
  ids[3] = salt == 1 ? -1 : ids[3];  // a label that does not count
  return ids;
}

struct Result {
  double loss = 0, norm = 0, evaluated = 0;
  std::map<std::string, double> sums;
  std::map<std::string, std::vector<float>> gradients;
};

Result RunOn(const std::vector<LossSpec>& losses, const ModelRun& run) {
  Result result;
  RunModel(TwoHeads(losses), run, [&](Engine& engine, int rank) {
    const auto n = static_cast<int64_t>(run.options.accumulate);
    const auto given = [&](int64_t microbatches, auto&& use) {
      const std::vector<int32_t> tokens = Ids(microbatches, 1, 0, rank),
                                 labels = Ids(microbatches, 0, 1, rank);
      return use(HostInputs{{"tokens", std::as_bytes(std::span(tokens))},
                            {"labels", std::as_bytes(std::span(labels))}});
    };
    const double evaluated =
        given(1, [&](const HostInputs& inputs) { return engine.EvalLossSum(inputs); });
    const StepScalars scalars = given(n, [&](const HostInputs& inputs) {
      return engine.Step(inputs, 1, 14 * n * run.mesh.world());  // parity 1
    });
    auto sums = engine.LossSums();
    auto gradients = FirstGradients(engine, run.options);
    if (rank == run.mesh.world() - 1)
      result = {scalars.loss, scalars.grad_norm, evaluated, std::move(sums), std::move(gradients)};
  });
  return result;
}

void CheckAdds(const ModelRun& run) {
  const Result both = RunOn({kMain, kAux}, run), main = RunOn({kMain}, run),
               aux = RunOn({Alone(kAux)}, run);
  // The same forward: a loss's own sum is what it is alone, bit for bit.
  REQUIRE(both.sums == std::map<std::string, double>{{"main", main.sums.at("main")},
                                                     {"aux", aux.sums.at("aux")}});
  REQUIRE(main.sums.at("main") != aux.sums.at("aux"));
  CHECK(both.loss == Approx(main.loss + 0.3 * aux.loss).epsilon(1e-14));
  CHECK(both.evaluated == main.evaluated + 0.3 * aux.evaluated);
  // Sums of at most 14 * 3 * 2 rows and 37 columns in f32, added in another order.
  const double u = std::ldexp(1, -24);
  for (const auto& [name, of_both] : both.gradients) {
    double scale = 0, apart = 0;
    const std::vector<float>&a = main.gradients.at(name), &b = aux.gradients.at(name);
    for (size_t i = 0; i < of_both.size(); ++i) {
      const double want = a[i] + 0.3 * static_cast<double>(b[i]);
      scale = std::max({scale, std::abs(want), std::abs(static_cast<double>(a[i]))});
      apart = std::max(apart, std::abs(of_both[i] - want));
    }
    INFO(name << ": " << apart << " of " << scale);
    CHECK(scale > 1e-4);
    CHECK(apart <= 64 * u * scale);
  }
}

TEST_CASE("losses add with their weights, in the loss and in the gradient of what heads share",
          "[system][losses]") {
  for (const GradConcat concat : {GradConcat::kDirect, GradConcat::kEvery, GradConcat::kLast})
    for (const int accumulate : {1, 3})
      for (const Mesh& mesh : {Mesh(1, 1), Mesh(1, 2), Mesh(2, 1)}) {
        ModelRun run;
        run.mesh = mesh;
        run.options.accumulate = accumulate;
        run.options.grad_concat = concat;
        run.options.learning_rate.lr = 1e-3;
        INFO("concat " << static_cast<int>(concat) << " accumulate " << accumulate << " shard "
                       << mesh.Size(Axis::kShard) << " replicate " << mesh.Size(Axis::kReplicate));
        CheckAdds(run);
      }
}

TEST_CASE("a step of several losses has the same bits checked, recomputed and walked",
          "[system][losses]") {
  ModelRun run;
  run.mesh = Mesh(1, 2);
  run.options.accumulate = 2;
  const Result plain = RunOn({kMain, kAux}, run);
  const auto same = [&] {
    const Result other = RunOn({kMain, kAux}, run);
    CHECK(other.loss == plain.loss);
    CHECK(other.norm == plain.norm);
    CHECK(other.gradients == plain.gradients);
  };
  SECTION("checked") { run.engine.checked = true, same(); }
  SECTION("recomputed") { run.recompute = Recompute::kBlock, same(); }
  SECTION("walked") { run.engine.graph = GraphMode::kOff, same(); }
}

TEST_CASE("inputs and losses are called by names that the model declares", "[system][losses]") {
  const TwoHeads model({kMain, kAux});
  const auto built = [&](auto&& emit) {
    ForwardBuilder b(model.spec(), {.batch = 2, .seq = 7}, DType::kF32, DType::kF32);
    b.BeginUnit("embed");
    emit(b, Embedding(b, "table", "", "x"));
    return std::move(b).Finish();
  };
  using B = ForwardBuilder;
  const auto head = [](B& b, ValueId x, const char* loss) {
    Head(b, x, "table", HeadMode::kTrainLoss, loss);
  };
  CHECK_THROWS_WITH(built([&](B& b, ValueId x) { head(b, x, "other"); }),
                    Catch::Matchers::Contains("has no loss 'other'"));
  CHECK_THROWS_WITH(built([&](B& b, ValueId x) { head(b, x, "main"); }),
                    Catch::Matchers::Contains("1 of 2 losses"));
  CHECK_THROWS_WITH(built([&](B& b, ValueId x) { head(b, x, "aux"), head(b, x, "aux"); }),
                    Catch::Matchers::Contains("a head of loss 'aux' already"));
  CHECK_THROWS_WITH(built([&](B& b, ValueId) { Embedding(b, "table", "", "y", "positions"); }),
                    Catch::Matchers::Contains("has no input 'positions'"));
  LossSpec trained = kAux;
  trained.held_out = false;
  const TwoHeads further({kMain, trained});
  const auto alone = [&](const char* loss, HeadMode mode) {
    ForwardBuilder b(further.spec(), {.batch = 2, .seq = 7}, DType::kF32, DType::kF32);
    b.BeginUnit("embed");
    Head(b, Embedding(b, "table", "", "x"), "table", mode, loss);
    return std::move(b).Finish();
  };
  CHECK_NOTHROW(alone("main", HeadMode::kEvalLoss));
  CHECK_THROWS_WITH(alone("aux", HeadMode::kEvalLoss), Catch::Matchers::Contains("1 of 2 losses"));
  CHECK_THROWS_WITH(AddGradients(alone("main", HeadMode::kTrainLoss), Recompute::kNone),
                    Catch::Matchers::Contains("losses of a forward that trains"));
  ModelSpec spec = model.spec();
  spec.losses[1].targets = "nothing";
  CHECK_THROWS_WITH(ValidateModelSpec(spec),
                    Catch::Matchers::Contains("'nothing' is no i32 input"));
  ModelRun run;
  RunModel(model, run, [](Engine& engine, int) {
    const std::vector<int32_t> tokens(16);
    CHECK_THROWS_WITH(engine.Step(tokens, 0, 14),
                      Catch::Matchers::Contains("the input 'labels' is not given"));
  });
}

// Its perplexity is that of the next token. Without weights, log(vocab) of each target that counts:
// of each of two sequences 7, and 6 of what is predicted further.
TEST_CASE("the held-out loss is the next token's alone", "[system][losses]") {
  ModelOptions options = TinyLlama();
  options.blocks.back().branches.back() = MoeShape{.experts = 5,
                                                   .top_k = 2,
                                                   .width = 7,
                                                   .aux_loss = AuxLossKind::kSwitch,
                                                   .aux_coefficient = 0.5};
  options.init_std = 0;
  options.mtp = {.depth = 1, .loss_scale = 0.3, .block = options.blocks.front()};
  const std::unique_ptr<Model> model = MakeModel(options);
  const std::vector<LossSpec>& losses = model->spec().losses;
  REQUIRE(losses.size() == 3);
  RunModel(*model, ModelRun{}, [&](Engine& engine, int) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 2 * 8; ++i) tokens.push_back(7 * i % 37);
    const HostInputs inputs{{"tokens", std::as_bytes(std::span(tokens))}};
    const double sum = engine.EvalLossSum(inputs);
    engine.Step(inputs, 0, 2 * 7);
    const std::map<std::string, double> sums = engine.LossSums();
    const double each = std::log(static_cast<double>(options.vocab));
    CHECK(sums.at(losses[0].name) == Approx(2 * 7 * each).epsilon(1e-6));
    CHECK(sums.at("mtp.1") == Approx(2 * 6 * each).epsilon(1e-6));
    CHECK(sums.at("balance") > 0);
    CHECK(sum == sums.at(losses[0].name));
  });
}

}  // namespace
}  // namespace millrace::test
