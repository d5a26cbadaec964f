#include "runtime/config/optimizer_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr const char* kKinds[] = {"adamw", "muon"};

bool IsIn(const json& given, double min, double max) {
  return given.is_number() && given.get<double>() >= min && given.get<double>() <= max;
}

// What is wrong with it; "" if nothing is.
std::string TakeNumber(const char* name, const json& given, double min, double max,
                       std::optional<double>& number) {
  if (!IsIn(given, min, max))
    return fmt::format("its {} must be a number from {} to {}", name, min, max);
  number = given.get<double>();
  return "";
}

std::string TakeParameters(const json& given, OptimizerGroup& group) {
  const json list = given.is_array() ? given : json::array({given});
  if (list.empty() || !std::all_of(list.begin(), list.end(), IsNonEmptyString))
    return "its parameters must be a pattern of names, or a list of such";
  group.parameters = list.get<std::vector<std::string>>();
  return "";
}

std::string TakeName(const json& given, OptimizerGroup& group) {
  const auto kind = std::find(std::begin(kKinds), std::end(kKinds), given);
  if (kind == std::end(kKinds)) return "its name must be adamw or muon";
  group.name = static_cast<OptimizerKind>(kind - std::begin(kKinds));
  return "";
}

std::string TakeBetas(const json& given, OptimizerGroup& group) {
  const auto is_beta = [](const json& one) { return IsIn(one, 0, 1) && one.get<double>() < 1; };
  if (!given.is_array() || given.size() != 2 || !is_beta(given[0]) || !is_beta(given[1]))
    return "its betas must be 2 numbers of at least 0 and below 1";
  group.betas = given.get<std::array<double, 2>>();
  return "";
}

// What is wrong with one key of a group; "" if nothing is. Ranges are those of the keys of
// `optimizer` of the same names.
std::string Take(const std::string& key, const json& value, OptimizerGroup& group) {
  if (key == "parameters") return TakeParameters(value, group);
  if (key == "name") return TakeName(value, group);
  if (key == "lr") return TakeNumber("lr", value, 0, 1000, group.lr);
  if (key == "lr_mult") return TakeNumber("lr_mult", value, 0, 1000, group.lr_mult);
  if (key == "weight_decay") return TakeNumber("weight_decay", value, 0, 1000, group.weight_decay);
  if (key == "betas") return TakeBetas(value, group);
  if (key == "eps") return TakeNumber("eps", value, 1e-30, 1e30, group.eps);
  if (key != "frozen")
    return fmt::format(
        "it has the unknown key {}; parameters, name, lr, lr_mult, weight_decay, betas, eps and "
        "frozen are known",
        key);
  if (!value.is_boolean()) return "its frozen must be true or false";
  group.frozen = value.get<bool>();
  return "";
}

// What is wrong with one group; "" if nothing is.
std::string Read(const json& given, OptimizerGroup& group) {
  if (!given.is_object()) return "it is no object";
  for (const auto& [key, value] : given.items())
    if (std::string problem = Take(key, value, group); !problem.empty()) return problem;
  return group.parameters.empty() ? "it has no parameters" : "";
}

}  // namespace

std::string AllowedGroups() {
  return "a list of objects {parameters, name, lr, lr_mult, weight_decay, betas, eps, frozen}, of "
         "which parameters is needed";
}

std::optional<OptimizerGroups> GroupsFrom(const json& given, std::string* problem) {
  problem->clear();
  if (!given.is_array() || given.empty()) return std::nullopt;
  OptimizerGroups groups;
  for (const json& one : given) {
    OptimizerGroup& group = groups.emplace_back();
    const std::string wrong = Read(one, group);
    if (wrong.empty()) continue;
    *problem = fmt::format("group {}: {}", groups.size(), wrong);
    return std::nullopt;
  }
  return groups;
}

std::string ProblemOf(const OptimizerGroup& group) {
  const bool constants =
      group.lr || group.lr_mult || group.weight_decay || group.betas || group.eps;
  if (group.frozen && (group.name || constants))
    return "it is frozen, so that nothing else of it has an effect; leave that out";
  if (!group.frozen && !group.name && !constants) return "it says nothing of its parameters";
  if (group.lr && group.lr_mult) return "it has both lr and lr_mult; one of them is enough";
  if (group.name == OptimizerKind::kMuon && (group.betas || group.eps))
    return "betas and eps are AdamW's, and its name is muon; optimizer.muon has Muon's";
  return "";
}

void to_json(json& value, const OptimizerGroup& group) {
  value = json::object();
  if (group.parameters.size() == 1)
    value["parameters"] = group.parameters.front();
  else
    value["parameters"] = group.parameters;
  if (group.frozen) value["frozen"] = true;
  if (group.name) value["name"] = kKinds[static_cast<size_t>(*group.name)];
  if (group.lr) value["lr"] = *group.lr;
  if (group.lr_mult) value["lr_mult"] = *group.lr_mult;
  if (group.weight_decay) value["weight_decay"] = *group.weight_decay;
  if (group.betas) value["betas"] = *group.betas;
  if (group.eps) value["eps"] = *group.eps;
}

}  // namespace millrace
