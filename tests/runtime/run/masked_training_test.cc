// Training on documents and on targets that a mask chooses, on in-process ranks: which targets
// count, in training and evaluation, and what a run says when it goes on with other masks.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/layout/further_weights.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/megatron_files.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/runtime/run/training_run.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;

// A warning of `words` that has all of `parts`.
bool HasWarning(const Words& words, const std::vector<std::string>& parts) {
  for (const std::string& text : words) {
    bool all = true;
    for (const std::string& part : parts) all &= text.find(part) != std::string::npos;
    if (all) return true;
  }
  return false;
}

TEST_CASE("a run that goes on with other document masks says which they were", "[training]") {
  // Lines of text are documents.
  test::TrainingRun run(1,
                        {"data.document_mask=true", "data.end_of_document=10", "train.steps=24"});
  std::atomic<bool> stop = false;
  const auto train_to = [&](int64_t step) {
    stop = false;
    return run.Train(
        {}, [&](const StepReport& report) { stop = report.step >= step; }, &stop);
  };
  CHECK(train_to(4).empty());
  CHECK(train_to(6).empty());
  run.Set("data.end_of_document=46");
  CHECK(HasWarning(train_to(8), {"data.end_of_document was 10 when", "and is 46 now"}));
  run.Set("data.document_mask=false");
  run.Set("data.end_of_document=null");
  const Words off = train_to(10);
  CHECK(HasWarning(off, {"data.document_mask was true when", "and is false now"}));
  CHECK_FALSE(HasWarning(off, {"data.end_of_document"}));
  CHECK(train_to(11).empty());
  run.Set("data.document_mask=true");
  run.Set("data.end_of_document=46");
  CHECK(HasWarning(run.Train(), {"data.document_mask was false when", "and is true now"}));
}

constexpr int64_t kT = 16, kTokens = 20 * kT + 1;  // 20 windows, of which 2 are held out

// Ids that say where they are: no two of them are equal.
int32_t IdAt(int64_t i) { return static_cast<int32_t>(i * 37 % 509); }
int64_t PlaceOf(int32_t id) { return int64_t{id} * 454 % 509; }  // 37 * 454 = 1 modulo 509

using Bytes = std::vector<uint8_t>;
using Ids = std::vector<uint16_t>;

Ids AllIds() {
  Ids ids;
  for (int64_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<uint16_t>(IdAt(i)));
  return ids;
}

// A token file with a mask, and a run on it.
class MaskedRun : public test::TrainingRun {
 public:
  MaskedRun(int world, const Ids& ids, const Bytes& mask, std::vector<std::string> sets = {})
      : TrainingRun(world, {"train.eval_every=6"}) {
    WriteBytes(path(), AsBytes(ids));
    if (!mask.empty()) WriteBytes(dir_ / "ids.mask", AsBytes(mask));
    Set("data.kind=tokens");
    Set("model.vocab=509");
    Set("data.path=" + path());
    Set("data.loss_mask=true");
    for (const std::string& set : sets) Set(set);
  }
  std::string path() const { return dir_ / "ids.bin"; }

  // Of each step, then those held out.
  std::vector<double> Losses() {
    std::vector<double> losses;
    warnings = Train({}, [&](const StepReport& report) { losses.push_back(report.loss); });
    for (const nlohmann::json& line : Lines())
      if (line.contains("eval_loss")) losses.push_back(line["eval_loss"]);
    return losses;
  }
  Words warnings;

 private:
  TempDir dir_;
};

Bytes MaskOf(const std::function<bool(int64_t)>& counts) {
  Bytes mask;
  for (int64_t i = 0; i < kTokens; ++i) mask.push_back(counts(i) ? 1 : 0);
  return mask;
}

// The same steps, with weights that a program gives, also of blocks that predict further.
std::vector<double> WithWeights(const MaskedRun& run, const Bytes& mask, std::string& hash) {
  Config config = run.config(), weighted = config;
  weighted.data.loss_mask = {};
  weighted.train.loss_weights = true;
  std::vector<double> losses;
  test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
    Session data(config, setup.environment(), {{"train"}, true}),
        session(weighted, setup.environment(), {{"train"}, false});
    session.InitWeights();
    for (int64_t step = 0; step < config.train.steps; ++step) {
      const std::vector<int32_t> tokens = data.batcher().Step(step, 0);
      std::vector<float> weights;
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (i % (kT + 1) == 0) continue;  // ahead of a row's first target
        weights.push_back(mask[static_cast<size_t>(PlaceOf(tokens[i]))]);
      }
      std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(tokens))},
                                               {"weights", std::as_bytes(std::span(weights))}};
      LossTotals totals(data.batcher().valid_tokens(),
                        std::accumulate(weights.begin(), weights.end(), 0.0));
      const std::vector<FurtherWeights> further =
          RolledWeights(weights, kT, config.model.mtp.depth);
      for (const FurtherWeights& of : further) {
        inputs.push_back({of.source, std::as_bytes(std::span(of.values))});
        const int64_t targets = kT - 1 - std::ssize(totals.others);
        totals.others.push_back({of.source, totals.targets / kT * targets, of.sum});
      }
      losses.push_back(session.engine().Step(HostInputs(inputs), step, totals).loss);
    }
    hash = ParamHash(session.engine());
  });
  return losses;
}

// Of the next token, and of two more.
const std::vector<Words> kDepths = {{}, {"model.family=qwen3", "model.mtp.depth=2"}};

TEST_CASE("a mask's losses are those of weights that a program gives, bit for bit", "[training]") {
  const Bytes mask = MaskOf([](int64_t i) { return i * i % 7 < 3; });
  MaskedRun run(1, AllIds(), mask, GENERATE(from_range(kDepths)));
  std::vector<double> losses = run.Losses();
  REQUIRE(losses.size() == 14);
  losses.resize(12);
  std::string hash;
  CHECK(WithWeights(run, mask, hash) == losses);
  CHECK(run.Hashes()[0] == hash);
  // Another mask is another run, and so is none.
  Bytes other = mask;
  other[40] ^= 1;
  MaskedRun differs(1, AllIds(), other), all(1, AllIds(), mask, {"data.loss_mask=false"});
  CHECK(differs.Losses() != run.Losses());
  CHECK(all.Losses()[0] != losses[0]);
}

TEST_CASE("what only masked targets see changes no bit of losses and weights", "[training]") {
  // The first half of each row counts. Nothing of it sees what follows, which may be anything: but
  // not a row's last token, which begins the next one.
  const Bytes mask = MaskOf([](int64_t i) { return i % kT >= 1 && i % kT <= 8; });
  MaskedRun run(1, AllIds(), mask);
  const std::vector<double> losses = run.Losses();
  Ids ids = AllIds();
  for (int64_t i = 0; i < kTokens; ++i)
    if (i % kT >= 9) ids[static_cast<size_t>(i)] = static_cast<uint16_t>(i % 5);
  MaskedRun changed(1, ids, mask);
  CHECK(changed.Losses() == losses);  // held out ones, too
  CHECK(changed.Hashes()[0] == run.Hashes()[0]);
  ids[19 * kT + 8] = 3;  // counts, and is held out
  const std::vector<double> held_out = MaskedRun(1, ids, mask).Losses();
  CHECK(std::vector(held_out.begin(), held_out.begin() + 12) ==
        std::vector(losses.begin(), losses.begin() + 12));
  CHECK(held_out[12] != losses[12]);
  CHECK(held_out[13] != losses[13]);
}

TEST_CASE("two ranks have the losses of one, and a row may have no target", "[training]") {
  // Rows 0, 3, 6, ... have targets.
  const Bytes mask = MaskOf([](int64_t i) { return (i - 1) / kT % 3 == 0 && i % 2 == 0; });
  Words sets = GENERATE(from_range(kDepths));
  sets.push_back("train.micro_batch=4");
  MaskedRun one(1, AllIds(), mask, sets);
  sets.back() = "train.micro_batch=2";
  MaskedRun two(2, AllIds(), mask, sets);
  const std::vector<double> losses = one.Losses(), of_two = two.Losses();
  REQUIRE(of_two.size() == losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(i);
    CHECK(of_two[i] == Approx(losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("a step without a target has loss 0, says so, and the run goes on", "[training]") {
  const Bytes mask = MaskOf([](int64_t i) { return (i - 1) / kT % 3 == 0; });
  MaskedRun run(1, AllIds(), mask, {"train.micro_batch=1"});
  const std::vector<double> losses = run.Losses();
  REQUIRE(losses.size() == 14);
  size_t without = 0, said = 0;
  for (size_t step = 0; step < 12; ++step) {
    const bool none = losses[step] == 0;
    without += none;
    said += HasWarning(run.warnings, {"step " + std::to_string(step + 1) + ":", "no target"});
    CHECK((none || losses[step] > 1));
  }
  CHECK(without > 0);
  CHECK(without < 12);
  CHECK(said == without);
}

TEST_CASE("masks that do not fit what is configured are named", "[training]") {
  const Bytes mask = MaskOf([](int64_t i) { return i % 2 == 0; });
  const auto refuses = [&](MaskedRun run, ErrorCode code, std::vector<std::string> parts) {
    RequireError(code, parts, [&] { run.Train(); });
  };
  MaskedRun none(1, AllIds(), {});
  RequireError(ErrorCode::kData, {"data.loss_mask is true", none.path(), "NAME.mask"},
               [&] { none.Train(); });
  refuses(MaskedRun(1, AllIds(), mask, {"data.loss_mask=null"}), ErrorCode::kConfig,
          {"ids.mask", "data.loss_mask is null"});
  MaskedRun(1, AllIds(), mask, {"data.loss_mask=false"}).Train();
  Bytes bad = mask;
  bad[7] = 2;
  refuses(MaskedRun(1, AllIds(), bad), ErrorCode::kData, {"ids.mask", "byte offset 7 is 2"});
  // What is trained on and what is held out are alike.
  const MaskedRun masked(1, AllIds(), mask), plain(1, AllIds(), {});
  refuses(MaskedRun(1, AllIds(), mask, {"data.val_path=" + plain.path()}), ErrorCode::kData,
          {"trained on", "has masks", "evaluated on", "none"});
  // A blend may have sources without; then each is evaluated as it is trained on.
  const std::string sources =
      "data.sources=[{\"path\":\"" + masked.path() + "\"},{\"path\":\"" + plain.path() + "\"}]";
  MaskedRun blend(1, AllIds(), mask, {"data.path=null", sources});
  CHECK(blend.Losses().size() == 14);
}

TEST_CASE("documents of Megatron's index are those that an id ends", "[training]") {
  // 17 ends a document; the index says where, after each of them.
  Ids ids;
  MegatronParts parts{.dtype = 8, .bytes = 2};
  parts.documents = {0};
  for (int64_t i = 0; i < kTokens; ++i) {
    const bool ends = i % 11 == 4 || i % 29 == 7;
    ids.push_back(ends ? 17 : static_cast<uint16_t>(20 + IdAt(i) % 480));
  }
  for (int32_t length = 1, i = 0; i < kTokens; ++i, ++length) {
    if (ids[static_cast<size_t>(i)] != 17 && i + 1 < kTokens) continue;
    parts.lengths.push_back(length);
    parts.documents.push_back(static_cast<int64_t>(parts.lengths.size()));
    length = 0;
  }
  const auto losses = [&](bool index, const std::string& end) {
    MaskedRun run(1, ids, {}, {"data.loss_mask=null", "data.document_mask=true", end});
    if (index) WriteBytes(run.path().substr(0, run.path().size() - 4) + ".idx", parts.Index());
    return run.Losses();
  };
  const std::vector<double> by_id = losses(false, "data.end_of_document=17");
  CHECK(losses(true, "data.end_of_document=null") == by_id);
  CHECK(losses(true, "data.end_of_document=30") != by_id);  // an id that is given decides
  RequireError(ErrorCode::kConfig,
               {"data.end_of_document null", "ids.bin has no index of Megatron"},
               [&] { losses(false, "data.end_of_document=null"); });
}

// What a run tells people at level info.
struct HeardLog : Log {
  void Write(LogLevel level, LogScope, const std::string& text) noexcept override {
    if (level == LogLevel::kInfo) said.push_back(text);
  }
  bool Wants(LogLevel level) const noexcept override { return level == LogLevel::kInfo; }
  Words said;
};

TEST_CASE("a run whose files know documents says that they are not masked", "[training]") {
  const auto said = [&](bool index, const std::string& mask) {
    MaskedRun run(1, AllIds(), {}, {"data.loss_mask=null", "train.eval_every=0", mask});
    if (index) {
      const MegatronParts parts{
          .dtype = 8, .lengths = {100, int32_t(kTokens) - 100}, .documents = {0, 1, 2}};
      WriteBytes(run.path().substr(0, run.path().size() - 4) + ".idx", parts.Index());
    }
    HeardLog log;
    test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
      Environment environment = setup.environment();
      environment.log = &log;
      Session session(run.config(), environment, {{"train"}, true});
      TrainOptions options;
      options.machine = FindMachine("cpu");
      Train(session, options, std::atomic<bool>(false), {});
    });
    return HasWarning(log.said, {"data.document_mask is false", "Megatron's indices"});
  };
  CHECK(said(true, "data.document_mask=false"));
  CHECK_FALSE(said(true, "data.document_mask=true"));
  CHECK_FALSE(said(false, "data.document_mask=false"));
}

TEST_CASE("a run that goes on with other loss masks says so", "[training]") {
  const Bytes mask = MaskOf([](int64_t i) { return i % 2 == 0; });
  MaskedRun run(1, AllIds(), mask);
  std::atomic<bool> stop = false;
  run.Train(
      {}, [&](const StepReport& report) { stop = report.step >= 4; }, &stop);
  run.Set("data.loss_mask=false");
  const Words said = run.Train();
  CHECK(HasWarning(said, {"data.loss_mask was true when", "and is false now"}));
  CHECK_FALSE(HasWarning(said, {"fingerprint"}));
}

}  // namespace
}  // namespace millrace
