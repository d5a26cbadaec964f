#include "runtime/config/document.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "runtime/config/keys.h"
#include "tests/runtime/config/load_support.h"

namespace millrace {
namespace {

using nlohmann::json;

class SchemaValidator {
 public:
  SchemaValidator() : text_(json::parse(ConfigSchemaJson())) {
    valijson::SchemaParser parser(valijson::SchemaParser::kDraft7);
    parser.populateSchema(valijson::adapters::NlohmannJsonAdapter(text_), schema_);
  }

  bool Accepts(const std::string& text) {
    const json document = json::parse(text);
    const valijson::adapters::NlohmannJsonAdapter adapter(document);
    return validator_.validate(schema_, adapter, nullptr);
  }

 private:
  json text_;
  valijson::Schema schema_;
  valijson::Validator validator_;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether the table, rules between keys aside, accepts `value` for `key`: seen from the messages.
bool ParserAccepts(const std::string& text, const Key& key) {
  const std::vector<std::string> problems = Problems({text});
  return !AnyHas(problems, ": " + key.path + " = ") || !AnyHas(problems, "must be " + Allowed(key));
}

// Not 2^63 to 2^64: valijson reads those as negative.
const char* const kValues[] = {"null",
                               "true",
                               "false",
                               "0",
                               "-1",
                               "1",
                               "2",
                               "0.25",
                               "64",
                               "256",
                               "0.5",
                               "-0.5",
                               "2.5",
                               "1e300",
                               "9007199254740991",
                               "9007199254740992",
                               "9223372036854775807",
                               "100000000000000000000",
                               "\"\"",
                               "\"x\"",
                               "\"fp32\"",
                               "\"bf16\"",
                               "\"last\"",
                               "\"auto\"",
                               "\"llama3\"",
                               "\"null\"",
                               "[]",
                               "[0.9, 0.95]",
                               "[0, 0]",
                               "[0.9, 1.0]",
                               "[-0.1, 0.5]",
                               "[0.9]",
                               "[0.1, 0.2, 0.3]",
                               "[0.1, \"0.2\"]",
                               "{}",
                               "{\"kind\": \"wsd\"}",
                               R"(["a"])",
                               R"(["a", "b:c"])",
                               R"(["a", ""])",
                               R"(["a", null])",
                               R"([{"path": "a"}])",
                               R"([{"path": "a", "weight": 0.5, "kind": "text", "val_path": "b"},
                                   {"path": "b", "kind": null, "val_path": null}])",
                               R"([{"path": "a"}, {"weight": 1}])",
                               R"([{"path": ""}])",
                               R"([{"path": null}])",
                               R"([{"path": "a", "weight": 0}])",
                               R"([{"path": "a", "weight": 1e16}])",
                               R"([{"path": "a", "weight": null}])",
                               R"([{"path": "a", "kind": "synthetic"}])",
                               R"([{"path": "a", "val_path": ""}])",
                               R"([{"path": "a", "wieght": 1}])",
                               R"([{"parameters": "a", "lr": 0.5}])",
                               R"([{"parameters": ["a", "b*"], "name": "muon", "lr_mult": 2,
                                    "weight_decay": 0, "betas": [0.5, 0.25], "eps": 1},
                                   {"parameters": "c", "name": "adamw", "frozen": true}])",
                               R"([{"lr": 0.5}])",
                               R"([{"parameters": ""}])",
                               R"([{"parameters": []}])",
                               R"([{"parameters": ["a", 1]}])",
                               R"([{"parameters": "a", "lr": -0.5}])",
                               R"([{"parameters": "a", "lr_mult": 1001}])",
                               R"([{"parameters": "a", "weight_decay": null}])",
                               R"([{"parameters": "a", "betas": [0.5, 1]}])",
                               R"([{"parameters": "a", "betas": [0.5]}])",
                               R"([{"parameters": "a", "eps": 0}])",
                               R"([{"parameters": "a", "name": "sgd"}])",
                               R"([{"parameters": "a", "frozen": 1}])",
                               R"([{"parameters": "a", "lr_scale": 1}])"};

TEST_CASE("parser and schema agree on every key and value", "[config][schema]") {
  SchemaValidator schema;
  for (const Key& key : Keys()) {
    std::vector<std::string> values(std::begin(kValues), std::end(kValues));
    for (const std::string_view choice : key.choices) values.push_back(json(choice).dump());
    int accepted = 0, refused = 0;
    for (const std::string& value : values) {
      std::string text = Nested(key.path, value);
      if (key.required) {  // the other keys of the section have to be there
        json section = {{"rope_type", "llama3"},
                        {"factor", 8},
                        {"low_freq_factor", 1},
                        {"high_freq_factor", 4},
                        {"original_max_position_embeddings", 512}};
        section[std::string(key.leaf())] = json::parse(value);
        text = Nested(std::string(key.section()), section.dump());
      }
      const bool parser_accepts = ParserAccepts(text, key);
      (parser_accepts ? accepted : refused) += 1;
      if (parser_accepts != schema.Accepts(text))
        FAIL(text << ": only the " << (parser_accepts ? "parser" : "schema") << " accepts it");
    }
    CAPTURE(key.path);
    const size_t allowed = !key.later.empty() ? 1 : key.choices.empty() ? 2 : key.choices.size();
    REQUIRE(accepted >= static_cast<int>(allowed));
    REQUIRE(refused >= 10);
  }
}

TEST_CASE("parser and schema agree on structure", "[config][schema]") {
  struct Case {
    const char* text;
    bool accepted;
  };
  SchemaValidator schema;
  for (const Case& c : {Case{"{}", true},
                        {R"({"$schema": "x.json"})", true},
                        {R"({"modle": {}})", false},
                        {R"({"model": {"n_layer": 1}})", false},
                        {R"({"model": []})", false},
                        {R"({"model": null})", false},
                        {R"({"model": {}})", true},
                        {R"({"optimizer": {"schedule": {}}})", true},
                        {R"({"optimizer": {"schedule": {"kinds": 1}}})", false},
                        {R"({"optimizer": {"schedule": 1}})", false},
                        {R"({"model": {"rope_scaling": null}})", true},
                        {R"({"model": {"rope_scaling": {}}})", false},
                        {R"({"model": {"rope_scaling": {"rope_type": "llama3"}}})", false},
                        {R"({"memory.slots": 3})", false},
                        {"[]", false}}) {
    CAPTURE(c.text);
    REQUIRE(schema.Accepts(c.text) == c.accepted);
    std::vector<std::string> problems = Problems({kSynthetic, c.text});
    REQUIRE(problems.empty() == c.accepted);
  }
}

TEST_CASE("the schema states every default, and the defaults satisfy it", "[config][schema]") {
  SchemaValidator schema;
  REQUIRE(schema.Accepts(ConfigToJson(Config())));
  const json text = json::parse(ConfigSchemaJson());
  const json defaults = json::parse(ConfigToJson(Config()));
  for (const Key& key : Keys()) {
    CAPTURE(key.path);
    std::string in_schema, in_defaults = "/" + key.path;
    std::replace(in_defaults.begin(), in_defaults.end(), '.', '/');
    for (const char c : "/" + key.path)
      in_schema += c == '/' || c == '.' ? std::string("/properties/") : std::string(1, c);
    const json& entry = text.at(json::json_pointer(in_schema));
    REQUIRE(entry.at("description") == key.doc);
    if (!key.required) REQUIRE(entry.at("default") == defaults.at(json::json_pointer(in_defaults)));
  }
}

TEST_CASE("every configuration that ships is accepted by parser and schema", "[config][shipped]") {
  SchemaValidator schema;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().string());
    ++count;
    const std::string text = ReadFile(entry.path());
    REQUIRE(schema.Accepts(text));
    const std::vector<std::string> problems = Problems({text}, {}, {.world = 4, .has_cuda = true});
    for (const std::string& problem : problems) UNSCOPED_INFO(problem);
    REQUIRE(problems.empty());
  }
  REQUIRE(count >= 1);
}

TEST_CASE("configs/README.md is what the table of keys generates", "[config][docs]") {
  INFO("to bring it up to date: millrace config docs > configs/README.md");
  REQUIRE(ReadFile("configs/README.md") == ConfigDocsMarkdown());
}

TEST_CASE("the documentation has a row for every key", "[config][docs]") {
  const std::string docs = ConfigDocsMarkdown();
  for (const Key& key : Keys()) {
    CAPTURE(key.path);
    const size_t section = docs.find("\n## " + std::string(key.section()) + "\n");
    REQUIRE(section != docs.npos);
    const size_t row =
        docs.find("| `" + std::string(key.leaf()) + "` | " + Allowed(key) + " | ", section);
    REQUIRE(row < docs.find("\n## ", section + 1));
    REQUIRE(key.doc.size() > 8);
    REQUIRE(key.doc.back() == '.');
    REQUIRE(key.doc.find_first_of("|\n") == key.doc.npos);  // one cell, one line
  }
}

TEST_CASE("show prints every key with its value and origin", "[config][show]") {
  std::string shown = ConfigShow(Load({kSynthetic}, {"model.layers=3"}));
  const auto line_of = [&](const std::string& path) {
    const size_t at = ("\n" + shown).find("\n" + path + " ");
    REQUIRE(at != shown.npos);
    std::string line = shown.substr(at, shown.find('\n', at) - at);
    line.erase(
        std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
        line.end());
    return line;
  };
  for (const Key& key : Keys())
    if (!key.required) REQUIRE(line_of(key.path).starts_with(key.path));
  REQUIRE(line_of("model.layers") == "model.layers 3 --set");
  REQUIRE(line_of("data.kind") == "data.kind \"synthetic\" file0.json:1");
  REQUIRE(line_of("optimizer.betas") == "optimizer.betas [0.9,0.95] default");
  REQUIRE(line_of("model.rope_scaling") == "model.rope_scaling null default");
  REQUIRE(std::count(shown.begin(), shown.end(), '\n') ==
          static_cast<int64_t>(Keys().size()) - 5 + 1);

  REQUIRE(line_of("model.ffn") == "model.ffn 3072 default (null)");
  REQUIRE(line_of("memory.slots") == "memory.slots null default");      // packed has none
  REQUIRE(line_of("parallel.shard") == "parallel.shard null default");  // no world

  const std::string llama =
      ConfigShow(Load({R"({"data": {"kind": "synthetic"}, "model": {"family": "llama",
      "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                       "original_max_position_embeddings": 512}}})"}));
  REQUIRE(llama.find("model.rope_scaling.factor") != llama.npos);
  REQUIRE(llama.find("model.rope_scaling ") == llama.npos);

  shown =
      ConfigShow(Load({kSynthetic},
                      {"memory.allocator=fixed", "train.micro_batch=2", "train.global_batch=12",
                       "optimizer.schedule.kind=cosine", "train.steps=50", "train.accumulate=null"},
                      {.world = 3}));
  REQUIRE(line_of("memory.slots") == "memory.slots 2 default (null)");
  REQUIRE(line_of("parallel.shard") == "parallel.shard 3 default (null)");
  REQUIRE(line_of("train.accumulate") == "train.accumulate 2 --set (null)");
  REQUIRE(line_of("optimizer.schedule.decay_steps") ==
          "optimizer.schedule.decay_steps 50 default (null)");
}

TEST_CASE("show says what a data rank is where it is several ranks", "[config][show]") {
  const auto notes = [](const std::vector<std::string>& sets, std::optional<int> world) {
    const std::string shown = ConfigShow(Load({kSynthetic}, sets, {.world = world}));
    const size_t at = shown.find("note: ");
    return at == shown.npos ? "" : shown.substr(at);
  };
  CHECK(notes({}, 8) == "");
  CHECK(notes({"parallel.tensor=2"}, 8) == "note: 8 ranks: 4 data ranks of 2 ranks (tensor 2)\n");
  CHECK(notes({"parallel.tensor=2", "parallel.context=2"}, 4) ==
        "note: 4 ranks: 1 data rank of 4 ranks (context 2 x tensor 2)\n");
  CHECK(notes({"parallel.context=2", "parallel.shard=3", "parallel.replicate=2"}, {}) ==
        "note: 12 ranks: 6 data ranks of 2 ranks (context 2)\n");
  CHECK(notes({"parallel.tensor=4"}, {}) == "note: a data rank is 4 ranks (tensor 4)\n");
}

}  // namespace
}  // namespace millrace
