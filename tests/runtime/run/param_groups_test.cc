// optimizer.groups: what a file may say, and what it means for the parameters of a model.
#include "runtime/run/param_groups.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "runtime/base/error.h"
#include "runtime/base/glob.h"
#include "runtime/config/validate.h"
#include "runtime/run/model_options.h"

namespace millrace {
namespace {

TEST_CASE("a pattern matches names by stars and question marks alone", "[groups]") {
  static_assert(MatchesGlob("", ""));
  static_assert(!MatchesGlob("", "a"));
  static_assert(MatchesGlob("*", ""));
  static_assert(MatchesGlob("*", "h.0.ln_1.weight"));
  static_assert(MatchesGlob("h.*.bias", "h.0.attn.qkv.bias"));
  static_assert(!MatchesGlob("h.*.bias", "h.0.attn.qkv.bias2"));
  static_assert(!MatchesGlob("h.?.ln*", "h.10.ln_1.weight"));
  static_assert(MatchesGlob("h.1?.ln*", "h.10.ln_1.weight"));
  static_assert(MatchesGlob("*.w*t", "a.wt.weight"));
  static_assert(MatchesGlob("*ab", "aab"));
  static_assert(!MatchesGlob("a[bc]", "ab"));
  static_assert(MatchesGlob("a[bc]", "a[bc]"));
  static_assert(!MatchesGlob("ab", "abc"));
  static_assert(!MatchesGlob("a?", "a"));
  static_assert(MatchesGlob("embed/w?e", "embed/wte"));
}

std::string Refused(const char* groups) {
  std::string problem;
  REQUIRE_FALSE(GroupsFrom(nlohmann::json::parse(groups), &problem));
  return problem;
}

TEST_CASE("a list of groups says what is wrong with which", "[groups]") {
  using Catch::Matchers::Contains;
  CHECK(Refused("[]") == "");
  CHECK(Refused("{}") == "");
  CHECK(Refused("[3]") == "group 1: it is no object");
  CHECK(Refused(R"([{"lr": 1}])") == "group 1: it has no parameters");
  CHECK(Refused(R"([{"parameters": "a", "lr": 1}, {"lr": 1}])") == "group 2: it has no parameters");
  CHECK_THAT(Refused(R"([{"parameters": [], "lr": 1}])"), Contains("a pattern of names"));
  CHECK_THAT(Refused(R"([{"parameters": ["a", ""], "lr": 1}])"), Contains("a pattern of names"));
  CHECK_THAT(Refused(R"([{"parameters": "a", "lr": -1}])"), Contains("its lr must be a number"));
  CHECK_THAT(Refused(R"([{"parameters": "a", "eps": 0}])"), Contains("its eps must be a number"));
  CHECK_THAT(Refused(R"([{"parameters": "a", "betas": [0.5, 1]}])"), Contains("its betas"));
  CHECK_THAT(Refused(R"([{"parameters": "a", "name": "sgd"}])"), Contains("adamw or muon"));
  CHECK_THAT(Refused(R"([{"parameters": "a", "lr_scale": 1}])"), Contains("unknown key lr_scale"));
}

// What is wrong with optimizer.groups.
std::vector<std::string> ProblemsOf(const Config& config) {
  std::vector<std::string> texts;
  for (const ConfigProblem& problem : Validate(config, {}))
    if (problem.keys.front() == "optimizer.groups") texts.push_back(problem.text);
  return texts;
}

TEST_CASE("what of a group has no effect, or contradicts itself, is refused", "[groups]") {
  using Catch::Matchers::Contains;
  const auto problem = [](const OptimizerGroup& group) {
    Config config;
    config.optimizer.groups = OptimizerGroups{{.parameters = {"a"}, .lr = 1}, group};
    const std::vector<std::string> problems = ProblemsOf(config);
    REQUIRE(problems.size() <= 1);
    return problems.empty() ? std::string() : problems.front();
  };
  CHECK(problem({.parameters = {"a"}, .frozen = true}) == "");
  CHECK(problem({.parameters = {"a"}, .name = OptimizerKind::kMuon, .lr = 1}) == "");
  CHECK(problem({.parameters = {"a"}}) == "group 2: it says nothing of its parameters");
  CHECK_THAT(problem({.parameters = {"a"}, .lr = 1, .lr_mult = 1}), Contains("both"));
  CHECK_THAT(problem({.parameters = {"a"}, .frozen = true, .lr = 1}), Contains("is frozen"));
  CHECK_THAT(problem({.parameters = {"a"}, .name = OptimizerKind::kMuon, .eps = 1}),
             Contains("AdamW's"));
}

TEST_CASE("a group's learning rate needs one; muon goes with any axes", "[groups]") {
  Config config;
  config.optimizer.groups = OptimizerGroups{{.parameters = {"a"}, .lr = 1}};
  config.optimizer.lr = 0;
  CHECK(ProblemsOf(config).size() == 1);
  config.optimizer = {};
  config.optimizer.groups = OptimizerGroups{{.parameters = {"a"}, .name = OptimizerKind::kMuon}};
  config.parallel.tensor = 2;
  CHECK(ProblemsOf(config).empty());
}

TEST_CASE("a list of groups is written as it was read", "[groups]") {
  const auto json = nlohmann::json::parse(
      R"([{"parameters": "*.bias", "weight_decay": 0.0, "betas": [0.5, 0.75], "eps": 0.25},
          {"parameters": ["a", "b*"], "name": "muon", "lr_mult": 2.0},
          {"parameters": "c", "name": "adamw", "lr": 0.5}, {"parameters": "d", "frozen": true}])");
  std::string problem;
  const auto groups = GroupsFrom(json, &problem);
  REQUIRE(groups);
  CHECK(nlohmann::json(*groups) == json);
}

ModelSpec SpecOf(const OptimizerConfig& optimizer) {
  Config config;
  config.model.layers = 2;
  config.optimizer = optimizer;
  return MakeModel(ModelOptionsOf(config))->spec();
}

// "" where the groups are taken.
std::string Check(const OptimizerGroups& groups, OptimizerKind name = OptimizerKind::kAdamW) {
  OptimizerConfig optimizer;
  optimizer.name = name;
  optimizer.groups = groups;
  try {
    CheckGroups(optimizer, SpecOf(optimizer));
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

TEST_CASE("a group is of parameters that there are, and that no group ahead has", "[groups]") {
  using Catch::Matchers::Contains;
  CHECK(Check({{.parameters = {"*.bias", "*ln_?.*"}, .weight_decay = 0}}) == "");
  CHECK_THAT(Check({{.parameters = {"*.bias", "h.0.attn.qkw.weight"}, .lr = 1}}),
             Contains("h.0.attn.qkw.weight matches no parameter; the nearest are "
                      "h.0.attn.qkv.weight, "));
  CHECK_THAT(Check({{.parameters = {"transformer.layers.*"}, .lr = 1}}),
             Contains("names are embed/wte, embed/wpe, h.0.ln_1.weight"));
  CHECK_THAT(Check({{.parameters = {"h.*"}, .lr = 1}, {.parameters = {"h.1.*"}, .frozen = true}}),
             Contains("all that group 2 (h.1.*) matches is of a group ahead"));
  CHECK_THAT(Check({{.parameters = {"*"}, .frozen = true}}), Contains("all parameters are frozen"));
  CHECK_THAT(Check({{.parameters = {"h.0.mlp.*"}, .name = OptimizerKind::kMuon}}),
             Contains("muon is asked for h.0.mlp.up.bias, which is no matrix"));
}

TEST_CASE("what says nothing to the rule of a model's parameters is refused", "[groups]") {
  using Catch::Matchers::Contains;
  const OptimizerGroup betas = {.parameters = {"h.0.*.weight"}, .betas = {{0.5, 0.75}}};
  const OptimizerGroup eps = {.parameters = {"h.*.qkv.weight", "h.0.mlp.*.weight"}, .eps = 1e-6};
  CHECK(Check({betas}, OptimizerKind::kMuon) == "");  // weights of norms are AdamW's
  CHECK(Check({eps}) == "");
  CHECK_THAT(Check({betas, {.parameters = {"h.1.attn.*.weight"}, .betas = {{0.5, 0.75}}}},
                   OptimizerKind::kMuon),
             Contains("muon updates all of group 2 (h.1.attn.*.weight)"));
  CHECK_THAT(Check({eps}, OptimizerKind::kMuon), Contains("betas and eps are AdamW's"));
  const OptimizerGroup blocks = {.parameters = {"h.*"}, .frozen = true};
  CHECK(Check({blocks}) == "");
  CHECK_THAT(Check({blocks}, OptimizerKind::kMuon), Contains("leave no matrix to optimizer.name"));
  CHECK_THAT(Check({{.parameters = {"h.*"}, .name = OptimizerKind::kAdamW}}, OptimizerKind::kMuon),
             Contains("leave no matrix to optimizer.name"));
}

TEST_CASE("the first group that matches has a parameter", "[groups]") {
  OptimizerConfig optimizer;
  optimizer.name = OptimizerKind::kMuon;
  optimizer.groups = OptimizerGroups{{.parameters = {"h.0.mlp.up.weight"}, .frozen = true},
                                     {.parameters = {"h.0.mlp.*"}, .name = OptimizerKind::kAdamW},
                                     {.parameters = {"*.bias", "h.0.*"}, .weight_decay = 0}};
  const ModelSpec spec = SpecOf(optimizer);
  std::string text;
  for (const ParamSpec& param : spec.units.at(1).params)
    text += std::string(param.trainable ? Name(param.update) : "frozen") + " ";
  // ln_1, attn.qkv, attn.proj, ln_2, mlp.up, mlp.down: weight and bias each.
  CHECK(text == "adamw adamw muon adamw muon adamw adamw adamw frozen adamw adamw adamw ");
  const std::vector<std::string> notes = GroupNotes(optimizer, spec);
  REQUIRE(notes.size() == 4);
  CHECK(notes[1] ==
        "optimizer.groups 2: {\"name\":\"adamw\",\"parameters\":\"h.0.mlp.*\"}: 3 parameters, "
        "2363136 elements");
}

}  // namespace
}  // namespace millrace
