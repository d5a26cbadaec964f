// Which algorithms a run takes, with a fake library: measured once, kept in file and checkpoints,
// never measured again by a run that goes on, and never silently others than the checkpoint's.
#include "runtime/run/tuning.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "comm/local/local_world.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/config/load.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;

// A library that measures `algorithm` for every product.
struct Fake {
  std::string device = "gpu A", algorithm = "0a";
  bool other_device_on_rank_1 = false;
  std::atomic<int> measured = 0;  // products

  Tuner On(int rank) {
    const std::string mine = other_device_on_rank_1 && rank == 1 ? "gpu Z" : device;
    return {.device = mine,
            .library_version = "library 1",
            .measure =
                [this](const std::vector<MatmulOp<Shape>>& products) {
                  TuningTable table{device, "library 1", {}};
                  for (const MatmulOp<Shape>& op : products)
                    for (const auto& key : {KeyOf(op), FusedKeyOf(op)})
                      if (key) table.matmuls[*key] = {algorithm, "fake", 1, 2};
                  measured += static_cast<int>(table.matmuls.size());
                  return table;
                },
            .install = [](const TuningTable&) {}};
  }
};

struct Heard : StepObserver {
  std::string warnings;
  void OnWarning(const std::string& text) override { warnings += text + "\n"; }
};

struct Call {
  std::string hash, said;  // of rank 0; what set-up and training said
  std::string error;       // that it ended with
};

std::string TextOf(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Keeps what is said to people.
class SaidLog final : public Log {
 public:
  explicit SaidLog(std::string& said) : said_(said) {}
  void Write(LogLevel level, LogScope, const std::string& text) noexcept override {
    if (level >= LogLevel::kWarning) said_ += text + "\n";
  }
  bool Wants(LogLevel) const noexcept override { return true; }

 private:
  std::string& said_;
};

class Run {
 public:
  std::string file() const { return dir_ / "run/tuning.json"; }

  // Two more steps, on two ranks. `fake` null: nothing can be tuned.
  Call Train(Fake* fake, std::vector<std::string> sets = {}) {
    const int world = 2;
    steps_ += 2;
    sets.push_back("run.dir=" + dir_ / "run");
    sets.push_back(fmt::format("train.steps={}", steps_));
    const std::vector<ConfigText> texts = {{"test.json", R"({
      "model": {"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
      "data": {"kind": "synthetic"},
      "optimizer": {"schedule": {"kind": "constant"}},
      "train": {"micro_batch": 2}})"}};
    const LoadedConfig loaded = LoadConfigTexts(texts, sets, ConfigContext{.world = world});
    Call call;
    Heard heard[world];
    try {
      test::TestRanks().Run(world, [&](const test::RankSetup& setup) {
        const int rank = setup.comms.rank();
        Environment environment = setup.environment();
        if (fake != nullptr) environment.tuner = fake->On(rank);
        SaidLog said(call.said);
        if (rank == 0) environment.log = &said;
        Session session(loaded.config, environment,
                        {.plans = {"train"}, .data = true, .goes_on = true});
        if (rank == 0) call.hash = session.tuning();
        millrace::Train(session, {FindMachine("cpu"), {}}, std::atomic<bool>(false),
                        {&heard[rank]});
      });
    } catch (const Error& error) {
      REQUIRE((error.code() == ErrorCode::kConfig || error.code() == ErrorCode::kIo));
      call.error = error.what();
      steps_ -= 2;
    }
    call.said += heard[0].warnings;
    return call;
  }

  TuningTable Table() const { return TuningTable::FromText(TextOf(file()), file()); }
  void Write(const TuningTable& table) const { std::ofstream(file()) << table.ToText(); }

 private:
  const TempDir dir_;
  int steps_ = 0;
};

TEST_CASE("a run measures once, and goes on without its file with the checkpoint's", "[tuning]") {
  Run run;
  Fake fake;
  const Call first = run.Train(&fake);
  REQUIRE(fake.measured > 0);
  REQUIRE(first.error == "");
  CHECK(first.said == "");
  const TuningTable kept = run.Table();
  CHECK(first.hash == kept.Hash());
  fake.measured = 0;
  fake.algorithm = "0b";  // what it would measure now
  const Call second = run.Train(&fake);
  CHECK(second.hash == first.hash);
  CHECK(second.said == "");
  std::filesystem::remove(run.file());
  const Call third = run.Train(&fake);
  CHECK(third.error == "");
  CHECK(third.hash == first.hash);
  CHECK_THAT(third.said, Contains("tuning.json is missing: it is written from ") &&
                             Contains("step_00000004") && !Contains("bits change"));
  CHECK(run.Table() == kept);
  CHECK(fake.measured == 0);
}

TEST_CASE("a pipe in the file's place is refused, and nobody waits for it", "[tuning]") {
  Run run;
  Fake fake;
  std::filesystem::create_directory(std::filesystem::path(run.file()).parent_path());
  REQUIRE(::mkfifo(run.file().c_str(), 0600) == 0);
  CHECK_THAT(run.Train(&fake).error, Contains(run.file()) && Contains("not a regular file"));
}

TEST_CASE("a file that contradicts the checkpoint is an error that says what to do", "[tuning]") {
  Run run;
  Fake fake;
  const Call first = run.Train(&fake);
  TuningTable other = run.Table();
  other.matmuls.begin()->second.algorithm = "0c";
  run.Write(other);
  fake.measured = 0;
  const Call refused = run.Train(&fake);
  CHECK_THAT(
      refused.error,
      Contains("tuning.json has another algorithm for " + ToString(other.matmuls.begin()->first)) &&
          Contains("step_00000002 was trained with") && Contains("Remove the file") &&
          Contains("execution.tune_again=true"));
  // Either advice helps.
  fake.algorithm = "0d";
  const Call measured = run.Train(&fake, {"execution.tune_again=true"});
  CHECK(measured.error == "");
  CHECK(measured.hash != first.hash);
  CHECK(fake.measured == static_cast<int>(run.Table().matmuls.size()));
  CHECK_THAT(measured.said,
             Contains("was trained with algorithms " + first.hash) && Contains("the bits change"));
  CHECK(std::filesystem::exists(run.file() + ".old"));
  std::filesystem::remove(run.file());
  fake.measured = 0;
  CHECK(run.Train(&fake).hash == measured.hash);
  CHECK(fake.measured == 0);
}

TEST_CASE("entries that the checkpoint lacks contradict nothing", "[tuning]") {
  Run run;
  Fake fake;
  const Call first = run.Train(&fake);
  TuningTable more = run.Table();
  MatmulKey key = more.matmuls.begin()->first;
  key.m += 1000;
  more.matmuls[key] = {"0e", "of another plan", 1, 2};
  run.Write(more);
  const Call second = run.Train(&fake);
  CHECK(second.error == "");
  CHECK(second.said == "");
}

TEST_CASE("another GPU: a run that goes on stops, a new one measures", "[tuning]") {
  Run run;
  Fake a, b;
  b.device = "gpu B";
  run.Train(&a);
  const Call refused = run.Train(&b);
  CHECK_THAT(refused.error, Contains("measured on gpu A with library 1, and here are gpu B") &&
                                Contains("execution.tune_again=true"));
  CHECK(b.measured == 0);
  CHECK(run.Train(&b, {"checkpoint.resume=never"}).error == "");
  CHECK(b.measured > 0);
  CHECK(run.Table().device == "gpu B");
  CHECK(std::filesystem::exists(run.file() + ".old"));
}

TEST_CASE("products that a run's checkpoint lacks are not measured by it", "[tuning]") {
  Run run;
  Fake fake;
  const Call first = run.Train(&fake);
  fake.measured = 0;
  const Call second = run.Train(&fake, {"train.micro_batch=4"});
  CHECK(second.error == "");
  CHECK(fake.measured == 0);
  CHECK(second.hash == first.hash);
  CHECK_THAT(second.said, Contains("take the library's first suggestions"));
}

TEST_CASE("tuned, then not; untuned, then a file appears", "[tuning]") {
  Run tuned, untuned;
  Fake fake;
  const Call first = tuned.Train(&fake);
  CHECK_THAT(tuned.Train(nullptr).said, Contains("was trained with algorithms " + first.hash +
                                                 ", and now there are the library's own choice"));
  CHECK(untuned.Train(nullptr).said == "");
  fake.measured = 0;
  const Call second = untuned.Train(&fake);
  CHECK(second.error == "");
  CHECK(fake.measured == 0);
  untuned.Write(tuned.Table());
  CHECK_THAT(untuned.Train(&fake).error,
             Contains("was trained with the library's own choice") && Contains("Remove the file"));
}

TEST_CASE("ranks with different libraries in force do not start", "[tuning]") {
  Run run;
  Fake fake;
  fake.other_device_on_rank_1 = true;
  CHECK_THAT(run.Train(&fake).error, Contains("rank 1 has the algorithms ") && Contains("gpu Z") &&
                                         Contains("and rank 0 "));
}

TEST_CASE("a checkpoint of an older version is gone on from as before, with a note", "[tuning]") {
  Run run;
  Fake fake;
  run.Train(&fake);  // for a plan and its file
  const TempDir dir;
  const std::vector<ConfigText> texts = {{"test.json", R"({
    "model": {"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
    "data": {"kind": "synthetic"}, "train": {"micro_batch": 2, "steps": 1}})"}};
  const LoadedConfig loaded = LoadConfigTexts(
      texts, std::vector<std::string>{"run.dir=" + dir / "run"}, ConfigContext{.world = 1});
  const AssembledRun assembled = Assemble(loaded.config, 1, test::TestRanks().Traits(1), {"train"});
  std::string said;
  TuningRequest request;
  request.config = &loaded.config;
  request.train = &assembled.plans.Of("train");
  request.saved = SavedTuning{"step_00000007", 7, /*recorded=*/false, ""};
  request.goes_on = true;
  request.say = [&](const std::string& text) { said += text; };
  LocalWorld world(1);
  const std::unique_ptr<Communicator> comm = world.Factory(0)->Make({0}, "world");
  fake.measured = 0;
  ChooseTuning(fake.On(0), request, *comm);
  CHECK(fake.measured > 0);
  CHECK_THAT(said, Contains("step_00000007 does not say which algorithms"));
}

}  // namespace
}  // namespace millrace
