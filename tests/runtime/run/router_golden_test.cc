// Which experts each token goes to, and with which weights, against transformers, over ten steps
// (tests/golden/make_router.py).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "kernels/ops/kernel_table.h"
#include "runtime/data/safetensors/safetensors.h"
#include "tests/runtime/run/golden_data.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using test::Golden;
using test::Spread;

// Of the rows that a router was given, [rows, K] each.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// Of this thread, which is a rank.
struct Watch {
  const KernelTable* kernels = nullptr;
  Device* device = nullptr;
  std::vector<Answer> answers;  // in the order in which routers ran
};
thread_local Watch watch;

template <class T>
std::vector<T> OnHost(const TensorView& view, Stream& stream) {
  std::vector<T> values(static_cast<size_t>(view.numel()));
  watch.device->CopyToHost(values.data(), view.data, view.bytes(), stream);
  return values;
}

void WatchedRoute(const RouteOp<TensorView>& op, Stream& stream) {
  watch.kernels->route(op, stream);
  watch.answers.push_back({OnHost<int32_t>(op.ids, stream), OnHost<float>(op.weights, stream)});
}

// router.safetensors and router.json.
struct RouterGolden {
  explicit RouterGolden(const Golden& golden) {
    const SafetensorsFile file(golden.folder + "/router.safetensors");
    const auto read = [&](const char* name, const char* dtype, auto& values) {
      const TensorInfo& tensor = file.Tensor(name);
      REQUIRE(tensor.spec.dtype == dtype);
      shape = tensor.spec.shape;  // [steps, blocks, B, T, K]
      values.resize(static_cast<size_t>(tensor.numel));
      file.ReadBytes(tensor, 0, tensor.bytes, values.data());
    };
    read("ids", "I32", ids);
    read("weights", "F64", weights);
    json = nlohmann::json::parse(std::ifstream(golden.folder + "/router.json"));
  }
  int64_t blocks() const { return shape[1]; }
  // Of a sequence's first.
  size_t At(int64_t step, int64_t block, int64_t row) const {
    return static_cast<size_t>(((step * shape[1] + block) * shape[2] + row) * shape[3] * shape[4]);
  }
  size_t OfSequence() const { return static_cast<size_t>(shape[3] * shape[4]); }

  std::vector<int64_t> shape;
  std::vector<int32_t> ids;
  std::vector<double> weights;
  nlohmann::json json;
};

// Of every rank the answers of ten steps: [step][microbatch][block].
std::vector<std::vector<Answer>> AnswersOf(const Golden& golden, const Spread& spread) {
  const std::vector<std::string> sets = {"memory.recompute=none", "execution.graph=off"};
  const LoadedConfig config = test::GoldenConfig(golden, spread, sets);
  std::vector<std::vector<Answer>> answers(static_cast<size_t>(spread.world()));
  test::TestRanks().Run(spread.world(), [&](const test::RankSetup& setup) {
    watch = {&setup.kernels, &setup.device, {}};
    KernelTable watched = setup.kernels;
    watched.route = WatchedRoute;
    Environment environment = setup.environment();
    environment.kernels = &watched;
    Session session(config.config, environment, {{"train"}, false});
    session.InitWeights();
    for (int64_t step = 0; step < golden.steps; ++step) test::StepOn(session, golden, spread, step);
    answers[static_cast<size_t>(session.rank())] = std::move(watch.answers);
  });
  return answers;
}

const std::vector<std::string> kModels = {"qwen3_moe_tiny", "nemotron_h_moe_tiny"};

// Keys lie further apart than float32 rounds, in the whole of the ten steps (router.json's margin):
// there are no ties to allow for.
TEST_CASE("routers choose transformers' experts, in their order, with their weights",
          "[golden][moe]") {
  const Golden golden(GENERATE(from_range(kModels)));
  const RouterGolden router(golden);
  const auto spread = GENERATE(Spread{.micro_batch = 3}, Spread{.micro_batch = 1, .accumulate = 3},
                               Spread{.shard = 3, .micro_batch = 1},
                               Spread{.replicate = 2, .shard = 2, .micro_batch = 3});
  if (!test::HaveDevices(spread.world())) return;
  CAPTURE(golden.folder, spread.Text());
  const std::vector<std::vector<Answer>> answers = AnswersOf(golden, spread);
  const double largest = router.json["weights_max"];
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    REQUIRE(static_cast<int64_t>(answers[rank].size()) ==
            golden.steps * spread.accumulate * router.blocks());
    auto answer = answers[rank].begin();
    for (int64_t step = 0; step < golden.steps; ++step) {
      const double theirs = router.json["fp32_err"][static_cast<size_t>(step)];
      size_t elsewhere = 0;
      double apart = 0;
      for (int64_t m = 0; m < spread.accumulate; ++m)
        for (int64_t block = 0; block < router.blocks(); ++block, ++answer) {
          const size_t n = router.OfSequence();
          REQUIRE(answer->ids.size() == static_cast<size_t>(spread.micro_batch) * n);
          for (int64_t i = 0; i < spread.micro_batch; ++i) {
            const size_t from = static_cast<size_t>(i) * n,
                         at = router.At(step, block,
                                        spread.Row(static_cast<int64_t>(rank),
                                                   m * spread.micro_batch + i, golden.batch));
            for (size_t j = 0; j < n; ++j) {
              elsewhere += answer->ids[from + j] != router.ids[at + j] ? 1 : 0;
              apart = std::max(apart, std::abs(static_cast<double>(answer->weights[from + j]) -
                                               router.weights[at + j]));
            }
          }
        }
      INFO("rank " << rank << ", step " << step << ": transformers' weights are off by " << theirs);
      CHECK(elsewhere == 0);
      CHECK(apart <= 1e-5 * largest);
      if (step == 0) CHECK(apart <= 2 * theirs);
    }
  }
}

TEST_CASE("every expert of the reference is chosen, and first by some token", "[golden][moe]") {
  const Golden golden(GENERATE(from_range(kModels)));
  const RouterGolden router(golden);
  const auto k = static_cast<size_t>(router.shape[4]);
  const auto experts = golden.json["model"]["moe"]["experts"].get<size_t>();
  std::set<int32_t> first, last;
  for (size_t at = 0; at < router.ids.size(); at += k) {
    first.insert(router.ids[at]);
    last.insert(router.ids[at + k - 1]);
  }
  CHECK(first.size() == experts);
  CHECK(last.size() == experts);
}

}  // namespace
}  // namespace millrace
