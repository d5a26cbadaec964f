#include "runtime/plan/layout/param_groups.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/glob.h"

namespace millrace {

const ParamGroup* GroupOf(const ParamGroups& groups, std::string_view name) {
  for (const ParamGroup& group : groups)
    if (std::any_of(group.patterns.begin(), group.patterns.end(),
                    [&](const std::string& pattern) { return MatchesGlob(pattern, name); }))
      return &group;
  return nullptr;
}

void ApplyGroups(const ParamGroups& groups, ModelSpec* spec) {
  for (UnitSpec& unit : spec->units)
    for (ParamSpec& param : unit.params) {
      const ParamGroup* const group = GroupOf(groups, param.name);
      if (group == nullptr) continue;
      MR_REQUIRE(
          ErrorCode::kConfig, group->rule != UpdateRule::kMuon || param.hidden,
          "optimizer.groups: muon is asked for {}, which is no matrix between hidden states; "
          "adamw is allowed: put it into a group ahead, or match matrices alone",
          param.name);
      param.trainable = !group->frozen;
      // A router's bias follows its own rule.
      if (param.update == UpdateRule::kBalance) continue;
      if (group->rule) param.update = *group->rule;
      if (group->frozen) param.update = UpdateRule::kAdamW;
    }
}

}  // namespace millrace
