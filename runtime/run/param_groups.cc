#include "runtime/run/param_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/glob.h"
#include "runtime/base/json.h"
#include "runtime/config/nearest.h"
#include "runtime/plan/layout/param_groups.h"
#include "runtime/run/model_options.h"

namespace millrace {
namespace {

// Parameters of a group, or of none.
struct Share {
  int64_t parameters = 0, elements = 0;
  int64_t by_gradient = 0;  // not by a router's own rule
  int64_t by_adamw = 0;
};

// By group; the last is what no group has.
std::vector<Share> SharesOf(const ParamGroups& groups, const ModelSpec& spec) {
  std::vector<Share> shares(groups.size() + 1);
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      const ParamGroup* const group = GroupOf(groups, param.name);
      Share& share =
          group == nullptr ? shares.back() : shares[static_cast<size_t>(group - groups.data())];
      ++share.parameters;
      share.elements += param.numel();
      share.by_gradient += param.update != UpdateRule::kBalance;
      share.by_adamw += param.update == UpdateRule::kAdamW;
    }
  return shares;
}

std::vector<std::string_view> NamesOf(const ModelSpec& spec) {
  std::vector<std::string_view> names;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) names.push_back(param.name);
  return names;
}

// What may have been meant by a pattern: the nearest names, or else some of those that there are.
std::string Hint(const std::string& pattern, std::vector<std::string_view> names) {
  constexpr size_t kShown = 3;
  std::vector<std::string> nearest;
  while (nearest.size() < kShown) {
    const std::string next = NearestName(pattern, names);
    if (next.empty()) break;
    std::erase(names, next);
    nearest.push_back(next);
  }
  if (!nearest.empty()) return fmt::format("the nearest are {}", fmt::join(nearest, ", "));
  names.resize(std::min(names.size(), 2 * kShown));
  return fmt::format("names are {}, ...", fmt::join(names, ", "));
}

void RequireMatch(const std::string& pattern, const std::vector<std::string_view>& names) {
  MR_REQUIRE(ErrorCode::kConfig,
             std::any_of(names.begin(), names.end(),
                         [&](std::string_view name) { return MatchesGlob(pattern, name); }),
             "optimizer.groups: {} matches no parameter; {}", pattern, Hint(pattern, names));
}

bool AnyTrained(const ModelSpec& spec, auto&& by) {
  return std::any_of(spec.units.begin(), spec.units.end(), [&](const UnitSpec& unit) {
    return std::any_of(unit.params.begin(), unit.params.end(),
                       [&](const ParamSpec& param) { return param.trainable && by(param.update); });
  });
}

std::string Described(const Share& share) {
  return fmt::format("{} parameters, {} elements", share.parameters, share.elements);
}

}  // namespace

void CheckGroups(const OptimizerConfig& optimizer, const ModelSpec& spec) {
  const ParamGroups groups = ParamGroupsOf(optimizer);
  if (groups.empty()) return;
  const std::vector<std::string_view> names = NamesOf(spec);
  const std::vector<Share> shares = SharesOf(groups, spec);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const std::string& pattern : groups[g].patterns) RequireMatch(pattern, names);
    MR_REQUIRE(
        ErrorCode::kConfig, shares[g].parameters > 0,
        "optimizer.groups: all that group {} ({}) matches is of a group ahead; leave it out, "
        "or put it ahead",
        g + 1, fmt::join(groups[g].patterns, ", "));
    MR_REQUIRE(
        ErrorCode::kConfig, groups[g].frozen || shares[g].by_gradient > 0,
        "optimizer.groups: group {} ({}) has biases of routers alone, which follow their own "
        "rule; frozen is allowed",
        g + 1, fmt::join(groups[g].patterns, ", "));
    const bool of_adamw = groups[g].beta1 || groups[g].eps;
    MR_REQUIRE(ErrorCode::kConfig, !of_adamw || shares[g].by_adamw > 0,
               "optimizer.groups: betas and eps are AdamW's, and muon updates all of group {} "
               "({}); leave them out, or name adamw",
               g + 1, fmt::join(groups[g].patterns, ", "));
  }
  MR_REQUIRE(ErrorCode::kConfig,
             AnyTrained(spec, [](UpdateRule rule) { return rule != UpdateRule::kBalance; }),
             "optimizer.groups: all parameters are frozen");
  MR_REQUIRE(ErrorCode::kConfig,
             optimizer.name != OptimizerKind::kMuon ||
                 AnyTrained(spec, [](UpdateRule rule) { return rule == UpdateRule::kMuon; }),
             "optimizer.groups leave no matrix to optimizer.name muon; adamw is allowed");
}

std::vector<std::string> GroupNotes(const OptimizerConfig& optimizer, const ModelSpec& spec) {
  if (!optimizer.groups) return {};
  const std::vector<Share> shares = SharesOf(ParamGroupsOf(optimizer), spec);
  std::vector<std::string> notes;
  for (size_t g = 0; g + 1 < shares.size(); ++g)
    notes.push_back(fmt::format("optimizer.groups {}: {}: {}", g + 1,
                                DumpJson(nlohmann::json((*optimizer.groups)[g])),
                                Described(shares[g])));
  notes.push_back("optimizer.groups, the rest: " + Described(shares.back()));
  return notes;
}

}  // namespace millrace
