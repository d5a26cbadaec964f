// A run's files read back: metrics with a torn end, and the history of configurations.
#include "runtime/record/run_folder.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <map>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/record/run_history.h"
#include "runtime/run/assemble.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

std::string Line(int step, const std::string& bits, const std::string& more = "") {
  return R"({"step":)" + std::to_string(step) + R"(,"loss_bits":")" + bits +
         R"(","grad_norm":1.5)" + more + "}\n";
}

RecordedCall Call(int64_t step, const std::string& lr, const std::string& origin) {
  RecordedCall call;
  call.step = step;
  call.world = 2;
  call.backend = "cpu";
  call.keys = {{"model.layers", {"4", "default"}}, {"optimizer.lr", {lr, origin}}};
  call.plan_stages = {{"layout", "l"}, {"schedule", "s" + lr}};
  return call;
}

void RequireEqual(const RunHistory& a, const RunHistory& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i].step == b[i].step);
    CHECK(a[i].world == b[i].world);
    CHECK(a[i].backend == b[i].backend);
    CHECK(a[i].keys == b[i].keys);
    CHECK(a[i].plan_stages == b[i].plan_stages);
    CHECK(a[i].environment == b[i].environment);
  }
}

TEST_CASE("metrics are read by bits; a torn last line is left out and said", "[run_folder]") {
  const std::string text =
      Line(1, "0x40490fdb") + Line(2, "0x7fc00000", R"(,"offender":"loss on rank 1")") +
      R"({"step":3,"loss_bits":"0x80000000","grad_norm":null,"eval_loss_bits":"0x3f800000"})";
  const RecordedMetrics torn = ParseMetrics(text, "m");
  CHECK(torn.torn);
  REQUIRE(torn.steps.size() == 2);
  CHECK(torn.steps.at(1).loss == 3.14159274f);
  CHECK(torn.steps.at(1).grad_norm == 1.5f);
  CHECK_FALSE(torn.steps.at(1).eval_loss.has_value());
  CHECK(std::isnan(torn.steps.at(2).loss));
  CHECK(torn.steps.at(2).offender == "loss on rank 1");
  for (size_t cut = 1; cut < 20; ++cut)
    CHECK(ParseMetrics(text.substr(0, text.size() - cut), "m").steps.size() == 2);

  const RecordedMetrics whole = ParseMetrics(text + "\n", "m");
  CHECK_FALSE(whole.torn);
  REQUIRE(whole.steps.size() == 3);
  CHECK(std::signbit(whole.steps.at(3).loss));
  CHECK(std::isnan(whole.steps.at(3).grad_norm));
  CHECK(whole.steps.at(3).eval_loss == 1.0f);
  CHECK(ParseMetrics("", "m").steps.empty());

  const std::string made =
      R"(,"rolled_back":[{"from":5,"why":"loss on rank 1"},{"from":4,"why":"spike"}])";
  const RecordedMetrics rolled_back = ParseMetrics(Line(3, "0x3f800000", made), "m");
  CHECK(rolled_back.steps.at(3).rolled_back ==
        std::vector<std::pair<int64_t, std::string>>{{5, "loss on rank 1"}, {4, "spike"}});
  for (const char* damaged : {R"(,"rolled_back":[5])", R"(,"rolled_back":[{"from":5}])"})
    CHECK_THROWS_AS(ParseMetrics(Line(3, "0x3f800000", damaged), "m"), Error);
}

TEST_CASE("of a step that was trained again the later line counts", "[run_folder]") {
  const RecordedMetrics metrics =
      ParseMetrics(Line(1, "0x3f800000") + Line(2, "0x40000000") + Line(3, "0x40400000") +
                       Line(2, "0x40800000") + Line(3, "0x40a00000") + Line(4, "0x40c00000"),
                   "m");
  CHECK(metrics.repeated == 2);
  REQUIRE(metrics.steps.size() == 4);
  CHECK(metrics.steps.at(1).loss == 1);
  CHECK(metrics.steps.at(2).loss == 4);
  CHECK(metrics.steps.at(3).loss == 5);
  CHECK(metrics.steps.at(4).loss == 6);
}

TEST_CASE("a damaged line is an error with its place", "[run_folder]") {
  const auto fails = [](const std::string& line, const std::string& message) {
    CAPTURE(line);
    RequireError(ErrorCode::kData, {"runs/a/metrics.jsonl:2: " + message}, [&] {
      ParseMetrics(Line(1, "0x3f800000") + line + "\n", "runs/a/metrics.jsonl");
    });
  };
  fails("{\"step\":2,", "not valid JSON");
  fails("{\"step\":2}", "\"loss_bits\" is missing");
  fails(R"({"step":2,"loss_bits":"3f800000"})",
        "\"loss_bits\" = 3f800000: must be 0x and eight hex digits");
  fails(R"({"step":2,"loss_bits":"0x3f8"})",
        "\"loss_bits\" = 0x3f8: must be 0x and eight hex digits");
  fails(R"({"step":2,"loss_bits":"0x3f80000g"})", "\"loss_bits\" = 0x3f80000g");
  fails(R"({"step":2,"loss_bits":"0x3f800000","grad_norm":"1"})",
        "\"grad_norm\" must be a number or null");
  fails(R"({"step":"2","loss_bits":"0x3f800000","grad_norm":1})", "\"step\"");
}

TEST_CASE("a resumed run keeps the first configuration and adds what changed", "[run_history]") {
  RunHistory history = WithCall({}, Call(0, "0.01", "a.json:3"));
  // Another origin of the same value is no change.
  history = WithCall(history, Call(4, "0.01", "--set"));
  REQUIRE(history.size() == 1);
  history = WithCall(history, Call(6, "0.02", "--set"));
  REQUIRE(history.size() == 2);
  history = WithCall(history, Call(8, "0.03", "b.json:1"));
  REQUIRE(history.size() == 3);
  const std::string text = RunHistoryJson(history);
  RequireEqual(ParseRunHistory(text, "config.json"), history);
  const size_t resumed = text.find("\"resumed\"");
  CHECK(text.find("model.layers") < resumed);
  CHECK(text.find("model.layers", resumed) == text.npos);  // only what changed
  // Back behind both changes, with the first configuration: neither is left.
  RequireEqual(WithCall(history, Call(6, "0.01", "a.json:3")), {history[0]});
  // A world alone is a change too.
  RecordedCall wider = Call(9, "0.03", "b.json:1");
  wider.world = 4;
  CHECK(WithCall(history, wider).size() == 4);
  // A path that is not UTF-8 does not end the run.
  CHECK(ParseRunHistory(RunHistoryJson({Call(0, "0.5", "\xff.json:1")}), "c")
            .front()
            .keys.at("optimizer.lr") == RecordedValue{"0.5", "\xef\xbf\xbd.json:1"});
  // From the beginning: another run.
  RequireEqual(WithCall(history, Call(0, "0.5", "c.json:1")), {Call(0, "0.5", "c.json:1")});
}

RecordedCall CallOn(int64_t step, const std::string& mpi, const std::string& start) {
  RecordedCall call = Call(step, "0.01", "default");
  call.environment = {
      {"host", "elm: ranks 0-1"}, {"started", start}, {"command", "of " + start}, {"MPI", mpi}};
  return call;
}

TEST_CASE("each call has the environment that it ran in, as it was given", "[run_history]") {
  RunHistory history = WithCall({}, CallOn(0, "4.1.4", "Monday"));
  // Begun at another time by another command, on the same machine: no change.
  history = WithCall(history, CallOn(4, "4.1.4", "Tuesday"));
  REQUIRE(history.size() == 1);
  history = WithCall(history, CallOn(6, "5.0.0", "Friday"));
  REQUIRE(history.size() == 2);
  const std::string text = RunHistoryJson(history);
  RequireEqual(ParseRunHistory(text, "c"),
               {CallOn(0, "4.1.4", "Monday"), CallOn(6, "5.0.0", "Friday")});
  CHECK(RunHistoryJson(ParseRunHistory(text, "c")) == text);
  RecordedCall elsewhere = CallOn(8, "5.0.0", "Friday");
  elsewhere.environment[0].second = "oak: ranks 0-1";
  CHECK(WithCall(history, elsewhere).size() == 3);
  // Calls of before there were environments, alone and before one that has its own.
  CHECK(RunHistoryJson({Call(0, "0.01", "default")}).find("environment") == text.npos);
  RequireEqual(ParseRunHistory(
                   RunHistoryJson({Call(0, "0.01", "default"), CallOn(6, "5.0.0", "Friday")}), "c"),
               {Call(0, "0.01", "default"), CallOn(6, "5.0.0", "Friday")});
}

TEST_CASE("a damaged environment is an error with its place", "[run_history]") {
  const auto fails = [](const std::string& environment, const std::string& message) {
    CAPTURE(environment);
    const std::string call = R"("world":1,"backend":"cpu","plan_stages":{},"keys":{})";
    const std::string damaged = call + R"(,"environment":)" + environment;
    RequireError(ErrorCode::kData, {"c.json: " + message},
                 [&] { ParseRunHistory(R"({"step":0,"resumed":[],)" + damaged + "}", "c.json"); });
    RequireError(ErrorCode::kData, {"c.json: " + message}, [&] {
      ParseRunHistory(R"({"step":0,)" + call + R"(,"resumed":[{"step":1,)" + damaged + "}]}",
                      "c.json");
    });
  };
  fails(R"({"name":"MPI","value":"4"})", "\"environment\" must be an array, got object");
  fails("null", "\"environment\" must be an array, got null");
  fails(R"([{"name":"MPI"}])", "\"value\" is missing");
  fails(R"([{"name":4,"value":"4"}])", "\"name\"");
  fails(R"([{"name":"MPI","value":4}])", "\"value\"");
  fails(R"(["MPI"])", "");
}

TEST_CASE("a history cannot stand for more than it is worth keeping in memory", "[run_history]") {
  const std::string rest = R"("world":1,"backend":"cpu","plan_stages":{},"keys":{)";
  std::string keys, calls;
  for (int i = 0; i < 100; ++i)
    keys += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"value":1,"origin":""})";
  const auto text = [&] {
    return R"({"step":0,)" + rest + keys + R"(},"resumed":[)" + calls + "]}";
  };
  const auto add = [&](int from, int to) {
    for (int i = from; i <= to; ++i)
      calls += (i > 1 ? ",{\"step\":" : "{\"step\":") + std::to_string(i) + "," + rest + "}}";
  };
  constexpr size_t kMost = 10000;  // a hundred calls of a hundred keys
  add(1, 99);
  CHECK(ParseRunHistory(text(), "a", kMost).size() == 100);
  add(100, 120);
  RequireError(ErrorCode::kData, {"a: the calls up to step 100 have more than 10000 values"},
               [&] { ParseRunHistory(text(), "a", kMost); });
  CHECK(ParseRunHistory(text(), "a").size() == 121);
  // Entries of an environment count as keys do.
  calls.clear();
  add(1, 98);
  std::string entries;
  for (int i = 0; i < 101; ++i) entries += R"({"name":"","value":""},)";
  entries.back() = ']';
  calls.back() = ',';
  calls += R"("environment":[)" + entries + "}";
  RequireError(ErrorCode::kData, {"a: the calls up to step 98 have more than 10000 values"},
               [&] { ParseRunHistory(text(), "a", kMost); });
}

TEST_CASE("config.json is written once, then only for a change; what is no history is left alone",
          "[run_history]") {
  const TempDir temp;
  const std::string path = temp / "config.json";
  CHECK_FALSE(ReadRunHistory(temp.path()).has_value());
  REQUIRE(RecordCall(temp.path(), Call(0, "0.01", "a.json:3")).empty());
  const std::string first = ReadBytes(path);
  REQUIRE(RecordCall(temp.path(), Call(4, "0.01", "--set")).empty());
  CHECK(ReadBytes(path) == first);
  REQUIRE(RecordCall(temp.path(), Call(4, "0.02", "--set")).empty());
  RequireEqual(ReadRunHistory(temp.path()).value(),
               {Call(0, "0.01", "a.json:3"), Call(4, "0.02", "--set")});

  // Half a file, and a configuration that someone keeps there: not ours to
  // replace, nor to put aside.
  for (const std::string& other :
       {first.substr(0, first.size() / 2), std::string(R"({"model": {"layers": 2}})")}) {
    CAPTURE(other);
    WriteBytes(path, other);
    for (const int64_t step : {0, 6}) {
      const std::string warning = RecordCall(temp.path(), Call(step, "0.02", "--set"));
      CHECK(warning.find(path + ": ") == 0);
      CHECK(warning.find("is left as it is, and the configuration is not recorded") !=
            warning.npos);
      CHECK(ReadBytes(path) == other);
    }
    CHECK_FALSE(HasRunHistory(temp.path()));
    WriteBytes(temp / "metrics.jsonl", Line(1, "0x3f800000"));
    CHECK(ReadRunFolder(temp.path()).history.empty());
    CHECK(ReadRunFolder(temp.path()).history_problem.find(path + ": ") == 0);
  }
  // Resumed where no call is known of.
  std::filesystem::remove(path);
  REQUIRE(RecordCall(temp.path(), Call(3, "0.02", "--set")).empty());
  RequireEqual(ReadRunHistory(temp.path()).value(), {Call(3, "0.02", "--set")});
}

TEST_CASE("what is recorded is the value in force, and gives the configuration back",
          "[run_history]") {
  const std::vector<ConfigText> texts = {{"a.json", R"({
    "model": {"family": "llama", "layers": 2, "d_model": 32, "heads": 4, "vocab": 300, "seq_len": 16,
      "rope_scaling": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 2,
        "original_max_position_embeddings": 8}},
    "data": {"kind": "synthetic"},
    "train": {"micro_batch": 2, "global_batch": 12}})"}};
  const int world = 2;
  const LoadedConfig loaded = LoadConfigTexts(
      texts, std::vector<std::string>{"optimizer.betas=[0.8,0.9]"}, ConfigContext{.world = world});
  const AssembledRun run = Assemble(loaded.config, world, {}, {"train"});
  const std::vector<PlanStage> stages = PlanStages(loaded.config, run);
  const RecordedCall call = DescribeCall(loaded.config, loaded.origin, stages, {5, 2, "cpu"});
  CHECK(call.step == 5);
  CHECK(call.world == 2);
  CHECK(call.keys.at("model.kv_heads") == RecordedValue{"4", "default"});
  CHECK(call.keys.at("train.accumulate") == RecordedValue{"3", "default"});
  CHECK(call.keys.at("train.global_batch") == RecordedValue{"12", "a.json:6"});
  CHECK(call.keys.at("optimizer.betas") == RecordedValue{"[0.8,0.9]", "--set"});
  CHECK(call.keys.at("data.path") == RecordedValue{"null", "default"});
  // The same plans come of it.
  const std::string text = RunHistoryJson({call});
  const Config again = ConfigOf(ParseRunHistory(text, "config.json").front());
  CHECK(again.model.rope_scaling == loaded.config.model.rope_scaling);
  const AssembledRun planned = Assemble(again, world, {}, {"train"});
  REQUIRE(stages.size() == kPlanStageNames.size());
  for (const PlanStage& stage : PlanStages(again, planned))
    CHECK(call.plan_stages.at(stage.name) == stage.Hash());
  CHECK(PlanHash(planned.plans.Of("train")) == PlanHash(run.plans.Of("train")));

  // A null section is recorded as one.
  LoadedConfig plain = loaded;
  plain.config.model.rope_scaling.reset();
  const RecordedCall unscaled = DescribeCall(plain.config, plain.origin, stages, {0, 2, "cpu"});
  CHECK(unscaled.keys.at("model.rope_scaling").value == "null");
  CHECK_FALSE(unscaled.keys.contains("model.rope_scaling.factor"));
  CHECK_FALSE(ConfigOf(unscaled).model.rope_scaling.has_value());

  RecordedCall other = call;
  other.keys["model.lairs"] = {"2", "default"};
  RequireError(ErrorCode::kData, {"model.lairs: this version has no such key"},
               [&] { ConfigOf(other); });
}

TEST_CASE("a change is seen in the stages that it reaches, and no others", "[plan_stages]") {
  const auto stages = [](const std::string& set) {
    const std::vector<ConfigText> texts = {{"a.json", R"({
      "model": {"family": "gpt2", "layers": 2, "d_model": 32, "heads": 2, "vocab": 64, "seq_len": 16},
      "data": {"kind": "synthetic"}, "train": {"micro_batch": 2}})"}};
    const LoadedConfig loaded =
        LoadConfigTexts(texts, std::vector<std::string>{set}, ConfigContext{.world = 2});
    return PlanStages(loaded.config, Assemble(loaded.config, 2, {}, {"train"}));
  };
  const std::vector<PlanStage> base = stages("train.seed=0");
  const auto differing = [&](const std::string& set) {
    std::vector<std::string> names;
    const std::vector<PlanStage> other = stages(set);
    for (size_t i = 0; i < base.size(); ++i)
      if (base[i].Hash() != other[i].Hash()) names.push_back(other[i].name);
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(differing("train.seed=1") == Names{});
  CHECK(differing("optimizer.lr=0.5") == Names{"schedule"});
  CHECK(differing("execution.graph=off") == Names{"schedule"});
  CHECK(differing("model.init_std=0.5") == Names{"model_spec"});
  CHECK(differing("precision.grad_wire=bf16") == Names{"layout", "memory_plan", "schedule"});
  CHECK(differing("memory.recompute=block") ==
        Names{"semantic_program", "kernel_program", "memory_plan", "schedule"});
  CHECK(differing("model.layers=3") == Names(kPlanStageNames.begin(), kPlanStageNames.end()));
}

TEST_CASE("a folder that is no run is refused", "[run_folder]") {
  const TempDir temp;
  RequireError(ErrorCode::kData, {temp / "none" + " does not exist"},
               [&] { ReadRunFolder(temp / "none"); });
  RequireError(ErrorCode::kData, {"neither metrics.jsonl nor config.json"},
               [&] { ReadRunFolder(temp.path()); });
  WriteBytes(temp / "file", "x");
  RequireError(ErrorCode::kData, {"is not a folder"}, [&] { ReadRunFolder(temp / "file"); });
  // Killed before its first step.
  RecordCall(temp.path(), Call(0, "0.01", "default"));
  CHECK(ReadRunFolder(temp.path()).metrics.steps.empty());
  CHECK(ReadRunFolder(temp.path()).history.size() == 1);
  CHECK_FALSE(ReadRunFolder(temp.path()).summary.has_value());
  WriteBytes(temp / "metrics.jsonl", Line(1, "0x3f800000"));
  WriteBytes(
      temp / "summary.json",
      R"({"last_step": 1, "param_hash": "p", "tuning_hash": "", "plan_stages": {"layout": "l"}})");
  const RecordedRun run = ReadRunFolder(temp.path());
  CHECK(run.metrics.steps.size() == 1);
  REQUIRE(run.summary);
  CHECK(run.summary->hashes ==
        std::map<std::string, std::string>{{"param_hash", "p"}, {"tuning_hash", ""}});
  CHECK(run.summary->plan_stages.at("layout") == "l");
}

}  // namespace
}  // namespace millrace
