#include "runtime/config/load.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "runtime/config/keys.h"
#include "tests/runtime/config/load_support.h"

namespace millrace {
namespace {

TEST_CASE("nothing given is the documented defaults", "[config][load]") {
  const LoadedConfig loaded = Load({kSynthetic});
  Config expected;
  expected.data.kind = DataConfig::Kind::kSynthetic;
  REQUIRE(loaded.config == expected);
  REQUIRE(loaded.origin.at("data.kind") == "file0.json:1");
  REQUIRE(loaded.origin.at("train.steps") == "default");
  REQUIRE(loaded.Given("data.kind"));
  REQUIRE_FALSE(loaded.Given("train.steps"));
}

TEST_CASE("later files win, objects merge, --set wins over all", "[config][load]") {
  const std::string first =
      "{\"data\": {\"kind\": \"synthetic\"},\n\"train\": {\"steps\": 10, \"seed\": 1}}";
  const std::string second = "{\n\n\"train\": {\"steps\": 20,\n\"micro_batch\": 3}}";
  const LoadedConfig loaded = Load({first, second}, {"train.micro_batch=4", "train.micro_batch=5"});
  REQUIRE(loaded.config.train.steps == 20);
  REQUIRE(loaded.config.train.seed == 1);
  REQUIRE(loaded.config.train.micro_batch == 5);
  REQUIRE(loaded.origin.at("train.steps") == "file1.json:3");
  REQUIRE(loaded.origin.at("train.seed") == "file0.json:2");
  REQUIRE(loaded.origin.at("train.micro_batch") == "--set");
  REQUIRE(Load({second, first}).config.train.steps == 10);
  REQUIRE(Load({loaded.merged}).config == loaded.config);
}

TEST_CASE("--set is typed by its key", "[config][load]") {
  const Config config =
      Load({kSynthetic},
           {"run.dir=7", "data.kind=text", "data.path=a=b c", "data.val_path=\"null\"",
            "optimizer.lr=3e-4", "optimizer.eps=.5", "optimizer.betas=[0.5, 0.75]",
            "execution.checked=true", "model.family=llama", "model.kv_heads=4",
            "model.head_dim=null", "optimizer.schedule={\"kind\": \"cosine\", \"warmup\": 5}"})
          .config;
  REQUIRE(config.run.dir == "7");
  REQUIRE(config.data.path == "a=b c");
  REQUIRE(config.data.val_path == "null");
  REQUIRE(config.optimizer.lr == 3e-4);
  REQUIRE(config.optimizer.eps == 0.5);
  REQUIRE(config.optimizer.betas == std::array{0.5, 0.75});
  REQUIRE(config.execution.checked);
  REQUIRE(config.model.family == ModelConfig::Family::kLlama);
  REQUIRE(config.model.kv_heads == 4);
  REQUIRE_FALSE(config.model.head_dim.has_value());
  REQUIRE(config.optimizer.schedule.kind == ScheduleConfig::Kind::kCosine);
  REQUIRE(config.optimizer.schedule.warmup == 5);
}

TEST_CASE("--set refuses what its key does not allow", "[config][load]") {
  for (const char* set :
       {"train.steps=ten",      "train.steps=1.5",       "train.steps=1e3",
        "train.steps=",         "train.steps=\"5\"",     "train.steps=99999999999999999999",
        "train.steps=null",     "execution.checked=1",   "execution.checked=True",
        "optimizer.lr=nan",     "optimizer.lr=inf",      "optimizer.lr=1e999",
        "optimizer.betas=0.9",  "optimizer.betas=[0.9]", "run.dir=",
        "run.dir=\"",           "run.dir=\xff",          "model.family=Llama",
        "optimizer.schedule=5", "optimizer.schedule={"}) {
    CAPTURE(set);
    const std::vector<std::string> problems = Problems({kSynthetic}, {set});
    REQUIRE(problems.size() == 1);
    REQUIRE(problems[0].starts_with(std::string("--set ") + set + ": "));
    REQUIRE(problems[0].find(": must be ") != std::string::npos);
  }
  REQUIRE(Problems({kSynthetic}, {"train.steps"})[0] ==
          "--set train.steps: must have the form section.key=value");
  REQUIRE(Problems({kSynthetic}, {"=5"}).size() == 1);
}

TEST_CASE("each key misspelt is reported in a file and in --set with the right name",
          "[config][load]") {
  for (const Key& key : Keys()) {
    std::string slip = key.path;
    slip.insert(slip.size() - 1, "x");  // model.layerxs
    const std::string expected = slip + ": unknown key; did you mean " + key.path + "?";
    CAPTURE(slip);
    REQUIRE(Problems({kSynthetic}, {slip + "=1"})[0] == "--set " + slip + "=1: " + expected);
    const std::vector<std::string> in_file = Problems({kSynthetic, Nested(slip, "1")});
    const size_t column = Nested(slip, "1").rfind(std::string(key.leaf()).substr(0, 1) +
                                                  slip.substr(slip.rfind('.') + 2));
    REQUIRE(in_file[0] == "file1.json:1:" + std::to_string(column) + ": " + expected);
  }
}

std::vector<std::string> WrongTypes(const Key& key) {
  std::vector<std::string> wrong = {"{}", "[]", "[[1, 2]]", "{\"a\": 1}"};
  if (!key.nullable) wrong.emplace_back("null");
  if (key.type != KeyType::kBool) wrong.insert(wrong.end(), {"true", "false"});
  if (key.type != KeyType::kInteger && key.type != KeyType::kNumber &&
      key.type != KeyType::kIntegerOrList)
    wrong.insert(wrong.end(), {"5", "0", "-1"});
  if (key.type != KeyType::kNumber) wrong.insert(wrong.end(), {"0.5", "5.0"});
  if (key.type != KeyType::kString)
    wrong.insert(wrong.end(), {"\"5\"", "\"true\"", "\"null\"", "\"gpt3\""});
  if (key.type == KeyType::kString || key.type == KeyType::kChoice) wrong.emplace_back("\"\"");
  if (key.type == KeyType::kNumberPair)
    wrong.insert(wrong.end(), {"[0.5]", "[0.5, 0.5, 0.5]", "[0.5, \"0.5\"]", "[0.5, null]"});
  else
    wrong.emplace_back("[0.5, 0.5]");
  if (key.type == KeyType::kIntegerOrList)
    wrong.insert(wrong.end(), {"[1, 2.0]", "[1, \"2\"]", "[1, null]", "[1, [2]]"});
  else
    wrong.emplace_back("[1, 2, 1]");
  return wrong;
}

TEST_CASE("a list of sources says which one is wrong, and why", "[config][load]") {
  struct Row {
    const char *given, *wrong;
  };
  for (const auto& [given, wrong] : std::vector<Row>{
           {R"([{"path": "a"}, 5])", "source 2: it is no object"},
           {R"([{"weight": 1}])", "source 1: it has no path"},
           {R"([{"path": ""}])", "source 1: its path must be a string"},
           {R"([{"path": "a", "weight": 0}])", "source 1: its weight must be a number above 0"},
           {R"([{"path": "a", "weight": "1"}])", "source 1: its weight must be a number above 0"},
           {R"([{"path": "a", "kind": "synthetic"}])", "source 1: its kind must be text or tokens"},
           {R"([{"path": "a"}, {"path": "b", "val_path": 1}])", "source 2: its val_path must be"},
           {R"([{"path": "a", "wieght": 1}])",
            "unknown key wieght; path, weight, kind, val_path"}}) {
    const std::vector<std::string> problems =
        Problems({kSynthetic, R"({"data": {"sources": )" + std::string(given) + "}}"});
    CAPTURE(given);
    REQUIRE(problems.size() == 1);
    REQUIRE_THAT(problems[0], Catch::Contains("data.sources") && Catch::Contains(wrong));
  }
}

TEST_CASE("each key with each wrong type is reported with its place and what is allowed",
          "[config][load]") {
  for (const Key& key : Keys()) {
    for (const std::string& value : WrongTypes(key)) {
      const std::string text = Nested(key.path, value);
      CAPTURE(text);
      const std::string place =
          "file1.json:1:" + std::to_string(text.rfind("\"" + std::string(key.leaf()) + "\"") + 1);
      const std::vector<std::string> problems = Problems({kSynthetic, text});
      REQUIRE(!problems.empty());
      REQUIRE(problems[0].starts_with(place + ": " + key.path + " = " + value + ": must be " +
                                      Allowed(key)));
    }
  }
}

// Just outside each bound, and far outside.
std::vector<std::string> OutOfRange(const Key& key) {
  const bool lists = key.type == KeyType::kIntegerOrList;
  const bool is_integer = key.type == KeyType::kInteger || lists;
  if (!is_integer && key.type != KeyType::kNumber && key.type != KeyType::kNumberPair) return {};
  std::vector<double> values;
  const KeyRange& range = key.range;
  const double step = is_integer ? 1 : 1e-3;
  if (std::isfinite(range.min))
    values.push_back(range.min_exclusive ? range.min : range.min - step);
  if (std::isfinite(range.max))
    values.push_back(range.max_exclusive
                         ? range.max
                         : std::max(range.max + step, std::nextafter(range.max, INFINITY)));
  if (!is_integer && !range.min_exclusive && range.min > 0)
    values.push_back(std::nextafter(range.min, 0));  // still positive
  std::vector<std::string> texts;
  for (const double value : values) {
    char text[64];
    std::snprintf(text, sizeof text, is_integer ? "%.0f" : "%.17g", value);
    texts.emplace_back(key.type == KeyType::kNumberPair ? "[0.5, " + std::string(text) + "]"
                                                        : text);
  }
  if (is_integer)
    texts.insert(texts.end(), {"9223372036854775807", "-9223372036854775808", "9223372036854775808",
                               "18446744073709551616", "1e400"});
  for (size_t i = 0, numbers = texts.size(); lists && i < numbers; ++i)
    if (texts[i] != "1e400") texts.push_back("[1, " + texts[i] + "]");
  return texts;
}

TEST_CASE("each key just out of its range is reported", "[config][load]") {
  int tried = 0;
  for (const Key& key : Keys()) {
    for (const std::string& value : OutOfRange(key)) {
      CAPTURE(key.path, value);
      ++tried;
      const std::vector<std::string> problems = Problems({kSynthetic, Nested(key.path, value)});
      REQUIRE(!problems.empty());
      const bool overflows = value == "1e400";  // no JSON number of this reader at all
      REQUIRE(AnyHas(problems, overflows ? "number overflow"
                                         : key.path + " = " + value + ": must be " + Allowed(key)));
      REQUIRE(!Problems({kSynthetic}, {key.path + "=" + value}).empty());
    }
  }
  REQUIRE(tried > 150);
}

TEST_CASE("everything wrong is reported at once, in the order of the text", "[config][load]") {
  const std::string text = R"({
  "modle": {"layers": 2},
  "model": {"family": "lama", "layers": 0,
            "heads": 3, "d_model": 100, "heads": 3},
  "train": {"lr": 3, "steps": 1e6},
  "parallel": 4,
  "memory.slots": 3
})";
  const std::vector<std::string> expected = {
      "file1.json:2:3: modle: unknown key; did you mean model?",
      "file1.json:3:13: model.family = \"lama\": must be one of gpt2, llama, qwen3, qwen3_moe, "
      "nemotron_h; did you mean llama?",
      "file1.json:3:31: model.layers = 0: must be an integer from 1 to 10000",
      "file1.json:4:41: \"heads\" is given twice in one object, first in line 4",
      "file1.json:5:13: train.lr: unknown key; did you mean optimizer.lr?",
      "file1.json:5:22: train.steps = 1e6: must be an integer from 1 to 1000000000",
      "file1.json:6:3: parallel = 4: must be an object",
      "file1.json:7:3: \"memory.slots\": keys with dots are for --set; in a file, write nested "
      "objects",
      "/nowhere/at.json: cannot be read: No such file or directory",
      "--set trian.steps=4: trian.steps: unknown key; did you mean train.steps?",
      "--set run.dir=: run.dir = : must be a string that is not empty"};
  // Through files, for their names; the first is given as text above.
  const std::string dir =
      std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") + "/";
  std::ofstream(dir + "file1.json") << text;
  const std::vector<std::string> files = {dir + "file1.json", "/nowhere/at.json"};
  const std::vector<std::string> sets = {"trian.steps=4", "run.dir="};
  try {
    LoadConfig(files, sets, {});
    FAIL("accepted");
  } catch (const Error& error) {
    std::string all = "11 problems in the configuration:";
    for (const std::string& line : expected)
      all += "\n  " + (line.starts_with("file1") ? dir + line : line);
    REQUIRE(std::string(error.what()) == all);
    REQUIRE(ExitCode(error.code()) == 2);
  }
  std::remove((dir + "file1.json").c_str());
}

TEST_CASE("files that cannot be used are named", "[config][load]") {
  const std::vector<std::string> folder = {"/"};
  REQUIRE_THROWS_WITH(LoadConfig(folder, {}, {}),
                      Catch::Contains("/: cannot be read: Is a directory"));
  REQUIRE(Problems({""})[0].starts_with("file0.json:1:1: not a JSON document: "));
  REQUIRE(Problems({"[1]"})[0] == "file0.json:1:1: must be an object of sections");
  REQUIRE(Problems({"null"}).size() == 1);
  REQUIRE(Problems({kSynthetic, "{\n \"train\": {\"steps\": }\n}"})[0].starts_with(
      "file1.json:2:21: not a JSON document"));
}

TEST_CASE("a file may name its schema", "[config][load]") {
  REQUIRE(Problems({kSynthetic, R"({"$schema": "schema.json"})"}).empty());
  REQUIRE_FALSE(Problems({kSynthetic, R"({"model": {"$schema": "schema.json"}})"}).empty());
}

const char* const kScaling =
    R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 4096})";

TEST_CASE("rope_scaling is null or complete", "[config][load]") {
  const std::string llama = R"({"data": {"kind": "synthetic"}, "model": {"family": "llama"}})";
  const std::string scaled = Nested("model.rope_scaling", kScaling);
  const LoadedConfig loaded = Load({llama, scaled}, {"model.rope_scaling.factor=8"});
  REQUIRE(loaded.config.model.rope_scaling.has_value());
  REQUIRE(loaded.config.model.rope_scaling->factor == 8);
  REQUIRE(loaded.config.model.rope_scaling->original_max_position_embeddings == 4096);
  REQUIRE(Load({loaded.merged}).config == loaded.config);

  REQUIRE_FALSE(
      Load({llama, scaled}, {"model.rope_scaling=null"}).config.model.rope_scaling.has_value());
  REQUIRE(Load({llama, Nested("model.rope_scaling", "null"), scaled})
              .config.model.rope_scaling.has_value());
  const LoadedConfig null = Load({llama, scaled, Nested("model.rope_scaling", "null")});
  REQUIRE(Load({null.merged}).config == null.config);

  const std::vector<std::string> missing = Problems({llama}, {"model.rope_scaling.factor=8"});
  REQUIRE(missing.size() == 4);
  REQUIRE(
      missing[0] ==
      "--set model.rope_scaling.factor=8: model.rope_scaling.rope_type: missing; must be llama3");
  REQUIRE(Problems({llama, Nested("model.rope_scaling", "{}")}).size() == 5);
  REQUIRE(Problems({llama, Nested("model.rope_scaling", "4")})[0] ==
          "file1.json:1:12: model.rope_scaling = 4: must be an object, or null");
}

TEST_CASE("a configuration written out in full loads as itself", "[config][load]") {
  const LoadedConfig loaded = Load(
      {R"({"data": {"kind": "tokens", "path": "x \"quoted\" \u00e9"}, "model": {"family": "llama", "vocab": 300}})",
       Nested("model.rope_scaling", kScaling)},
      {"optimizer.lr=0.1", "optimizer.eps=1.2345678901234567e-7", "train.seed=9007199254740991"});
  const LoadedConfig again = Load({ConfigToJson(loaded.config)});
  REQUIRE(again.config == loaded.config);
  REQUIRE(again.Given("checkpoint.keep"));
  const LoadedConfig plain = Load({kSynthetic});
  REQUIRE(Load({ConfigToJson(plain.config)}).config == plain.config);
}

}  // namespace
}  // namespace millrace
