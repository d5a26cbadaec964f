// Training on a blend, on in-process ranks: which rows it reads, computed apart from the rule, and
// a run that is stopped and goes on.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/tokens/blend.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/megatron_files.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Row = std::vector<int32_t>;

constexpr int64_t kSeqLen = 8, kSteps = 12;

// Tokens as they are read, by step and rank; on rank 0 a wish to stop after a step.
struct Observer : StepObserver {
  std::map<int64_t, Row> tokens;
  std::atomic<bool>* stop = nullptr;
  int64_t stop_after = 0;
  std::vector<std::string> warnings;
  void OnTokens(int64_t step, std::span<int32_t> ids) override {
    tokens[step] = {ids.begin(), ids.end()};
  }
  void OnStep(const StepReport& report) override {
    if (stop != nullptr && report.step == stop_after) *stop = true;
  }
  void OnWarning(const std::string& text) override { warnings.push_back(text); }
};

// Three sources whose ids say which one they are of and where in it: letters, digits, and
// Megatron's ids from 256 on.
class Data {
 public:
  Data() {
    std::string letters, digits;
    for (int i = 0; i < 700; ++i) letters += static_cast<char>('a' + (i * i + i / 7) % 26);
    for (int i = 0; i < 300; ++i) digits += static_cast<char>('0' + (i * 3 + i / 9) % 10);
    WriteBytes(dir_ / "letters.txt", letters);
    WriteBytes(dir_ / "digits.txt", digits);
    MegatronParts parts{.dtype = 4, .bytes = 4};
    std::vector<int32_t> ids;
    for (int i = 0; i < 450; ++i) ids.push_back(256 + (i * 7 + i / 11) % 200);
    parts.lengths = {200, 250};
    parts.documents = {0, 1, 2};
    WriteBytes(dir_ / "ids.idx", parts.Index());
    WriteBytes(dir_ / "ids.bin", AsBytes(ids));
  }

  std::string Sources(const std::vector<double>& weights) const {
    const Json all = {{{"path", dir_ / "letters.txt"}, {"weight", weights.at(0)}},
                      {{"path", dir_ / "digits.txt"}, {"weight", weights.at(1)}},
                      {{"path", dir_ / "ids"}, {"weight", weights.at(2)}, {"kind", "tokens"}}};
    return "data.sources=" + all.dump();
  }
  std::string operator/(const std::string& name) const { return dir_ / name; }

 private:
  TempDir dir_;
};

int64_t SourceOf(int32_t id) { return id >= 256 ? 2 : id >= 'a' ? 0 : 1; }

struct Trained {
  // All ranks' rows in the order of samples.
  std::vector<Row> rows;
  std::vector<std::string> warnings;
};

class Run {
 public:
  Run(int world, std::vector<std::string> sets) : world_(world), sets_(std::move(sets)) {
    sets_.push_back("run.dir=" + folder());
  }

  std::string folder() const { return dir_ / "run"; }

  Trained Train(const std::vector<std::string>& more = {}, int64_t stop_after = 0) const {
    std::vector<std::string> sets = sets_;
    sets.insert(sets.end(), more.begin(), more.end());
    const std::vector<ConfigText> texts = {{"test.json", R"({
      "model": {"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "seq_len": 8,
                "vocab": 512},
      "data": {"eval_batches": 2},
      "optimizer": {"lr": 1e-2},
      "train": {"steps": 12, "global_batch": 6, "micro_batch": 1},
      "checkpoint": {"every": 0}})"}};
    const LoadedConfig loaded = LoadConfigTexts(texts, sets, ConfigContext{.world = world_});
    std::vector<Observer> observers(static_cast<size_t>(world_));
    std::atomic<bool> stop = false;
    observers[0].stop = &stop;
    observers[0].stop_after = stop_after;
    test::TestRanks().Run(world_, [&](const test::RankSetup& setup) {
      Session session(loaded.config, setup.environment(), {{"train", "eval"}, true});
      TrainOptions options;
      options.machine = FindMachine("cpu");
      millrace::Train(session, options, stop, {&observers[static_cast<size_t>(session.rank())]});
    });
    return {RowsOf(observers, 6 / world_), observers[0].warnings};
  }

  Json Summary() const { return Json::parse(ReadBytes(folder() + "/summary.json")); }
  std::vector<std::string> Hashes() const {
    return {Summary()["param_hash"], Summary()["optimizer_hash"]};
  }
  std::vector<Json> Lines() const {
    std::ifstream in(folder() + "/metrics.jsonl");
    std::vector<Json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }

 private:
  static std::vector<Row> RowsOf(std::vector<Observer>& observers, int64_t accumulate) {
    std::vector<Row> rows;
    for (const auto& [step, ignored] : observers[0].tokens)
      for (int64_t m = 0; m < accumulate; ++m)
        for (Observer& rank : observers) {
          const int32_t* const row = rank.tokens.at(step).data() + m * (kSeqLen + 1);
          rows.emplace_back(row, row + kSeqLen + 1);
        }
    return rows;
  }

  TempDir dir_;
  int world_;
  std::vector<std::string> sets_;
};

// The rule, in integers: source i is behind by weight[i] * max(k, 1) - taken[i] * sum.
std::vector<int64_t> DrawsOf(const std::vector<int64_t>& weights, int64_t count) {
  std::vector<int64_t> taken(weights.size()), draws;
  int64_t sum = 0;
  for (const int64_t weight : weights) sum += weight;
  for (int64_t k = 0; k < count; ++k) {
    const auto behind = [&](size_t i) {
      return weights[i] * std::max<int64_t>(k, 1) - taken[i] * sum;
    };
    size_t best = 0;
    for (size_t i = 1; i < weights.size(); ++i)
      if (behind(i) > behind(best)) best = i;
    draws.push_back(static_cast<int64_t>(best));
    ++taken[best];
  }
  return draws;
}

TEST_CASE(
    "a blend's rows are of the sources that the rule draws, at any world, each once per epoch",
    "[blend]") {
  const Data data;
  // Sums that double has exactly, so that equals are equals there too.
  const std::vector<std::string> sets = {data.Sources({3, 8, 5}), "train.eval_every=12"};
  const Run one(1, sets), two(2, sets);
  const std::vector<Row> rows = one.Train().rows;
  REQUIRE(rows.size() == kSteps * 6);
  if (test::HaveDevices(2)) REQUIRE(two.Train().rows == rows);

  const std::vector<int64_t> draws = DrawsOf({3, 8, 5}, kSteps * 6);
  std::vector<std::vector<Row>> of(3);
  for (size_t k = 0; k < rows.size(); ++k) {
    CAPTURE(k);
    for (const int32_t id : rows[k]) REQUIRE(SourceOf(id) == draws[k]);
    of[static_cast<size_t>(draws[k])].push_back(rows[k]);
  }
  // Without a tenth of each. The digits' first epoch ends within the run.
  const std::vector<int64_t> windows = {79, 34, 51};
  for (size_t i = 0; i < of.size(); ++i) {
    const size_t epoch = std::min(of[i].size(), static_cast<size_t>(windows[i]));
    std::vector<Row> unique(of[i].begin(), of[i].begin() + static_cast<std::ptrdiff_t>(epoch));
    std::sort(unique.begin(), unique.end());
    REQUIRE(std::unique(unique.begin(), unique.end()) == unique.end());
  }
  const std::vector<Json> lines = one.Lines();
  for (const size_t step : {size_t{1}, size_t{7}, size_t{12}}) {
    std::vector<int64_t> taken(3);
    for (size_t k = 0; k < step * 6; ++k) ++taken[static_cast<size_t>(draws[k])];
    const Json& line = lines.at(step - 1);
    CHECK(line["source_samples"] ==
          Json{{"letters", taken[0]}, {"digits", taken[1]}, {"ids", taken[2]}});
    CHECK(line["source_epochs"]["digits"] == static_cast<double>(taken[1]) / 34);
  }
  // Held out: of each source its last tenth, and their mean by weight.
  const Json& last = lines.back();
  const Json& losses = last["source_eval_loss"];
  REQUIRE(losses.size() == 3);
  CHECK(last["eval_loss"].get<double>() ==
        Approx((3 * losses["letters"].get<double>() + 8 * losses["digits"].get<double>() +
                5 * losses["ids"].get<double>()) /
               16));
  CHECK(losses["letters"] != losses["ids"]);
}

TEST_CASE("a run on a blend that is stopped and goes on is the run that was never stopped",
          "[blend]") {
  const Data data;
  const int world = test::HaveDevices(2) ? 2 : 1;
  const std::vector<std::string> sets = {data.Sources({0.62, 0.001, 0.379})};
  const Run whole(world, sets), stopped(world, sets);
  const std::vector<Row> rows = whole.Train().rows;
  std::vector<Row> legs = stopped.Train({}, 5).rows;
  REQUIRE(legs.size() == 6 * 6);  // the wish is heard in the step after
  const auto checkpoints = ListCheckpoints(stopped.folder() + "/checkpoints");
  REQUIRE(checkpoints.size() == 1);
  const Json saved = Json::parse(checkpoints[0].manifest->user);
  BlendState state = Blend({0.62, 0.001, 0.379}).Begin();
  Blend({0.62, 0.001, 0.379}).Advance(state, 36);
  CHECK(saved["blend_state"] == Json{{"sample", 36}, {"taken", state.taken}});
  const Trained rest = stopped.Train();
  CHECK(rest.warnings.empty());
  legs.insert(legs.end(), rest.rows.begin(), rest.rows.end());
  CHECK(legs == rows);
  CHECK(stopped.Hashes() == whole.Hashes());
  const std::vector<Json> a = whole.Lines(), b = stopped.Lines();
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i]["loss_bits"] == b[i]["loss_bits"]);
    CHECK(a[i]["source_samples"] == b[i]["source_samples"]);
  }
}

TEST_CASE("a run goes on with the sources that it began with, or says which they were", "[blend]") {
  const Data data;
  const Run run(1, {});
  run.Train({data.Sources({8, 3, 5})}, 3);
  const auto refuses = [&](const std::string& sources, std::vector<std::string> parts) {
    parts.push_back("choose another run.dir");
    RequireError(ErrorCode::kConfig, parts, [&] { run.Train({sources}); });
  };
  refuses(data.Sources({8, 3, 4}),
          {"letters (weight 8.0), digits (weight 3.0), ids (weight 5.0)", "ids (weight 4.0)"});
  refuses("data.path=" + data / "letters.txt", {"letters (weight 8.0)", "is one source now"});
  const Json other = {{{"path", data / "digits.txt"}}, {{"path", data / "letters.txt"}}};
  refuses("data.sources=" + other.dump(), {"digits (weight 1.0), letters (weight 1.0) now"});
  run.Train({data.Sources({8, 3, 5})});
  CHECK(run.Summary()["last_step"] == kSteps);
}

TEST_CASE("a blend of one source is that source", "[blend]") {
  const Data data;
  const Run one(1, {"data.path=" + data / "letters.txt", "train.eval_every=6"}),
      blend(1, {"data.sources=" + Json{{{"path", data / "letters.txt"}, {"weight", 3}}}.dump(),
                "train.eval_every=6"});
  CHECK(one.Train().rows == blend.Train().rows);
  CHECK(one.Hashes() == blend.Hashes());
  CHECK(one.Lines().back()["eval_loss_bits"] == blend.Lines().back()["eval_loss_bits"]);
  CHECK(blend.Lines().back()["source_epochs"]["letters"] == 72.0 / 79);
}

TEST_CASE("one file may be held out for all sources, or one of each", "[blend]") {
  const Data data;
  const Run common(
      1, {data.Sources({1, 1, 1}), "data.val_path=" + data / "digits.txt", "train.eval_every=12"});
  common.Train();
  CHECK(!common.Lines().back().contains("source_eval_loss"));
  CHECK(common.Lines().back().contains("eval_loss"));
  // All of 87 windows are trained on then, not 79.
  CHECK(common.Lines().back()["source_epochs"]["letters"] == 24.0 / 87);

  const Json own = {{{"path", data / "letters.txt"}, {"val_path", data / "digits.txt"}},
                    {{"path", data / "letters.txt"}}};
  const Run each(1, {"data.sources=" + own.dump(), "train.eval_every=12"});
  each.Train();
  const Json line = each.Lines().back();
  CHECK(line["source_epochs"]["letters"] == 36.0 / 87);
  CHECK(line["source_epochs"]["letters-2"] == 36.0 / 79);
  CHECK(line["source_eval_loss"].size() == 2);
}

}  // namespace
}  // namespace millrace
