// Documents packed in one row against each alone: losses of every target and the gradient of every
// token's embedding bit for bit, other gradients within the rounding of their sums.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

constexpr int64_t kRows = 2, kSeq = 12;

// Tokens [kRows, T + 1] of which no two are equal, and whose documents [kRows, T] they are in.
struct Packed {
  std::vector<int32_t> tokens, documents;
  std::vector<float> weights;  // 1 where the next token is of the same document
};

// `lengths` of each row's documents.
Packed Pack(const std::vector<std::vector<int64_t>>& lengths) {
  Packed packed;
  for (const std::vector<int64_t>& row : lengths) {
    for (int64_t i = 0; i <= kSeq; ++i)
      packed.tokens.push_back(static_cast<int32_t>(packed.tokens.size()));
    int64_t begin = 0;
    for (const int64_t length : row) {
      packed.documents.insert(packed.documents.end(), static_cast<size_t>(length),
                              static_cast<int32_t>(begin));
      packed.weights.insert(packed.weights.end(), static_cast<size_t>(length - 1), 1.0f);
      packed.weights.push_back(0);
      begin += length;
    }
    REQUIRE(begin == kSeq);
  }
  return packed;
}

const std::vector<std::vector<int64_t>> kLengths = {{3, 5, 4}, {7, 1, 4}};

// The document at `begin` of a row of the packed ones, of `length`, alone at the begin of that row:
// behind it, and in the other row, other tokens, which do not count.
Packed Alone(const Packed& packed, int64_t row, int64_t begin, int64_t length) {
  Packed alone = packed;
  std::fill(alone.weights.begin(), alone.weights.end(), 0.0f);
  for (int64_t i = 0; i <= kSeq; ++i) {
    const int64_t from = (begin + i) % (kSeq + 1);
    alone.tokens[static_cast<size_t>(row * (kSeq + 1) + i)] =
        packed.tokens[static_cast<size_t>(row * (kSeq + 1) + from)];
  }
  for (int64_t t = 0; t < kSeq; ++t) {
    const auto at = static_cast<size_t>(row * kSeq + t);
    alone.documents[at] = static_cast<int32_t>(t < length ? 0 : length);
    alone.weights[at] = t < length - 1 ? 1 : 0;
  }
  return alone;
}

struct Result {
  std::vector<double> losses;  // [kRows, T], of targets that count; else 0
  std::map<std::string, std::vector<float>> gradients;
};

Result RunOn(const ModelOptions& options, const ModelRun& run, const Packed& packed) {
  Result result;
  std::vector<std::vector<double>> of_rank(static_cast<size_t>(run.mesh.world()));
  const std::unique_ptr<Model> model = MakeModel(options);
  RunModel(*model, run, [&](Engine& engine, int rank) {
    const auto with = [&](const std::vector<float>& weights, auto&& use) {
      std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(packed.tokens))},
                                               {"weights", std::as_bytes(std::span(weights))}};
      if (options.documents)
        inputs.push_back({"documents", std::as_bytes(std::span(packed.documents))});
      return use(HostInputs(inputs));
    };
    std::vector<double>& losses = of_rank[static_cast<size_t>(rank)];  // of its rows
    for (size_t i = 0; i < packed.weights.size(); ++i) {
      std::vector<float> one(packed.weights.size());
      one[i] = packed.weights[i];
      losses.push_back(one[i] == 0 ? 0 : with(one, [&](const HostInputs& inputs) {
        return engine.EvalLossSum(inputs);
      }));
    }
    // Each target weighs the same, however many there are.
    with(packed.weights, [&](const HostInputs& inputs) { return engine.Step(inputs, 1, 24); });
    auto gradients = FirstGradients(engine, run.options);
    if (rank == 0) result.gradients = std::move(gradients);
  });
  result.losses = of_rank.front();
  for (size_t r = 1; r < of_rank.size(); ++r)
    for (size_t i = 0; i < result.losses.size(); ++i) result.losses[i] += of_rank[r][i];
  return result;
}

struct Family {
  const char* name;
  ModelOptions options;
};

std::vector<Family> Families() {
  ModelOptions gpt2 = TinyGpt2(2);
  gpt2.tied = false;  // the head would add to the embedding's gradient
  ModelOptions moe = TinyQwen3(2);
  moe.family = Name(ModelFamily::kQwen3Moe);
  for (BlockShape& block : moe.blocks)
    block.branches.back() = MoeShape{.experts = 5, .top_k = 2, .width = 7};
  ModelOptions mamba = TinyNemotronH();
  mamba.blocks.insert(
      mamba.blocks.begin(),
      BlockShape{{MambaShape{.heads = 4, .head_dim = 3, .groups = 2, .state = 5, .chunk = 2}}});
  return {{"gpt2", gpt2},
          {"llama", TinyLlama(2)},
          {"qwen3", TinyQwen3(2)},
          {"qwen3_moe", moe},
          {"nemotron_h", mamba}};
}

ModelOptions Masked(ModelOptions options) {
  options.seq_len = kSeq;
  options.init_std = 0.3;
  options.loss.weights = true;
  options.documents = true;
  return options;
}

ModelRun RunOf() {
  ModelRun run;
  run.options.shape.seq = kSeq;
  run.options.learning_rate.lr = 1e-3;
  return run;
}

const char* TableOf(const ModelOptions& options) {
  return options.family == "gpt2" ? "embed/wte" : "embed.weight";
}

// Adds what each document alone has, and compares.
void CheckPacked(const ModelOptions& options, const ModelRun& run) {
  const Packed packed = Pack(kLengths);
  const Result all = RunOn(options, run, packed);
  std::map<std::string, std::vector<double>> sums, magnitudes;
  std::vector<float> rows(all.gradients.at(TableOf(options)).size());
  const auto width = static_cast<size_t>(options.d_model);
  for (size_t row = 0; row < kLengths.size(); ++row) {
    int64_t begin = 0;
    for (const int64_t length : kLengths[row]) {
      CAPTURE(row, begin, length);
      const auto r = static_cast<int64_t>(row);
      const Result alone = RunOn(options, run, Alone(packed, r, begin, length));
      for (int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<size_t>(r * kSeq + begin + i);
        CHECK(all.losses[at] == alone.losses[static_cast<size_t>(r * kSeq + i)]);
        CHECK((all.losses[at] > 0) == (i < length - 1));
        const auto token =
            static_cast<size_t>(packed.tokens[static_cast<size_t>(r * (kSeq + 1) + begin + i)]);
        std::copy_n(alone.gradients.at(TableOf(options)).begin() +
                        static_cast<std::ptrdiff_t>(token * width),
                    width, rows.begin() + static_cast<std::ptrdiff_t>(token * width));
      }
      for (const auto& [name, values] : alone.gradients) {
        sums[name].resize(values.size()), magnitudes[name].resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) {
          sums[name][i] += static_cast<double>(values[i]);
          magnitudes[name][i] += std::abs(static_cast<double>(values[i]));
        }
      }
      begin += length;
    }
  }
  // Each token is there once: its row is the gradient of what the embedding gave for it.
  CHECK(all.gradients.at(TableOf(options)) == rows);
  // In FP8 what a weight's gradient sums, rows, shares scales: so do documents.
  if (run.linears != LinearEncoding::kCompute) return;
  // Sums over at most 24 rows, in another order.
  for (const auto& [name, values] : all.gradients) {
    double largest = 0, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, magnitudes[name][i]);
      apart = std::max(apart, std::abs(static_cast<double>(values[i]) - sums[name][i]));
    }
    CAPTURE(name, largest, apart);
    CHECK(apart <= 64 * std::ldexp(1, -24) * largest);
  }
}

TEST_CASE("documents in one row are to each other as in rows of their own", "[system][documents]") {
  for (const Family& family : Families()) {
    INFO(family.name);
    CheckPacked(Masked(family.options), RunOf());
  }
}

TEST_CASE("so they are where ranks split the blocks, or blocks are computed again",
          "[system][documents]") {
  ModelOptions options = Masked(Divisible(TinyLlama(2)));
  options.seq_len = kSeq;
  ModelRun run = RunOf();
  SECTION("computed again") { run.recompute = Recompute::kBlock; }
  SECTION("checked") { run.engine.checked = true; }
  SECTION("tensor") {
    run.mesh = Mesh().With(Axis::kTensor, 2);
    options.tensor = 2;
  }
  CheckPacked(options, run);
}

// Rows of several blocks. Scales are powers of two, which move none but the smallest numbers of a
// row: so there must be many.
TEST_CASE("so they are with linears in FP8 in blocks", "[system][documents][fp8]") {
  std::vector<Family> families = Families();
  for (Family& family : families) {
    family.options.d_model = 132;
    for (BlockShape& block : family.options.blocks)
      if (auto* mlp = block.Find<MlpShape>()) mlp->width = 140;
  }
  const Packed packed = Pack(kLengths), second = Alone(packed, 0, 3, 5);
  for (const Family& family : families) {
    INFO(family.name);
    const ModelOptions options = Masked(family.options);
    ModelRun run = RunOf();
    run.linears = LinearEncoding::kFp8Block;
    CheckPacked(options, run);
    // Rows that share a scale depend on each other: these numbers are such that it shows.
    run.linears = LinearEncoding::kFp8Tensor;
    const std::vector<double> all = RunOn(options, run, packed).losses,
                              alone = RunOn(options, run, second).losses;
    CHECK_FALSE(std::equal(all.begin() + 3, all.begin() + 3 + 4, alone.begin()));
  }
}

// A mask that did nothing would pass no test above; nor does one that says nothing change anything.
TEST_CASE("one document to a row has the bits of none, and several have others",
          "[system][documents]") {
  for (const Family& family : Families()) {
    INFO(family.name);
    ModelOptions options = Masked(family.options);
    const Packed several = Pack(kLengths);
    Packed one = several;
    std::fill(one.documents.begin(), one.documents.end(), 0);
    const Result masked = RunOn(options, RunOf(), one), split = RunOn(options, RunOf(), several);
    options.documents = false;
    const Result plain = RunOn(options, RunOf(), one);
    CHECK(masked.losses == plain.losses);
    CHECK(masked.gradients == plain.gradients);
    CHECK(split.losses != plain.losses);
    CHECK(split.losses[0] == plain.losses[0]);  // of the first document
    CHECK(split.losses[4] != plain.losses[4]);
  }
}

TEST_CASE("documents are refused where ranks share sequences and where blocks predict further",
          "[system][documents]") {
  ModelOptions options = Masked(TinyLlama());
  ModelRun run = RunOf();
  run.mesh = Mesh().With(Axis::kContext, 2);
  CHECK_THROWS_WITH(RunModel(*MakeModel(options), run, [](Engine&, int) {}),
                    Catch::Matchers::Contains("data.document_mask is true and parallel.context 2"));
  options.mtp = {.depth = 1, .loss_scale = 0.3, .block = options.blocks.front()};
  CHECK_THROWS_WITH(MakeModel(options),
                    Catch::Matchers::Contains("data.document_mask is true and model.mtp.depth 1"));
}

}  // namespace
}  // namespace millrace::test
