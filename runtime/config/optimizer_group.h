// A group of parameters of `optimizer.groups`, as plain data and as JSON:
//   {"parameters": ["*.bias", "*ln_*"], "name": "adamw", "lr": 1e-4, "weight_decay": 0}
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// kMuon: of matrices between hidden states.
enum class OptimizerKind { kAdamW, kMuon };

struct OptimizerGroup {
  std::vector<std::string> parameters;  // globs over names of parameters; written alone where one
  bool frozen = false;
  std::optional<OptimizerKind> name = {};
  // Learning rate after warm-up, or a factor of it.
  std::optional<double> lr = {}, lr_mult = {};
  std::optional<double> weight_decay = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  bool operator==(const OptimizerGroup&) const = default;
};

using OptimizerGroups = std::vector<OptimizerGroup>;

// What a list of groups is, for messages.
std::string AllowedGroups();

// None where `given` is no such list; `problem` then says what is wrong with which of them: "group
// 2: it has no parameters".
std::optional<OptimizerGroups> GroupsFrom(const nlohmann::json& given, std::string* problem);

// What is wrong with a group as a whole; "" if nothing is.
std::string ProblemOf(const OptimizerGroup& group);

void to_json(nlohmann::json& json, const OptimizerGroup& group);

}  // namespace millrace
