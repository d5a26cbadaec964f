// Groups of parameters that are updated in another way than the rest (optimizer.groups).
//
// Rule and whether it is trained decide what a run keeps of a parameter: they are the parameter's
// (ApplyGroups), and part of its flat parameter's key. What its update multiplies by is of no
// matter to a layout: flats stay as few and as large as without groups, checkpoints have the same
// shards, and one op updates a flat by segments (UpdateSegment).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/layout/model_spec.h"

namespace millrace {

struct ParamGroup {
  std::vector<std::string> patterns;  // globs (runtime/base/glob.h) over names of parameters
  bool frozen = false;
  std::optional<UpdateRule> rule = {};  // kAdamW or kMuon; none: as without the group
  // Of the learning rate: in the place of the rule's own scale, and times it.
  std::optional<double> lr_scale = {};
  double lr_mult = 1;
  std::optional<double> weight_decay = {};                 // of all of the group's parameters
  std::optional<double> beta1 = {}, beta2 = {}, eps = {};  // AdamW's

  bool SetsConstants() const {
    return lr_scale || lr_mult != 1 || weight_decay || beta1 || beta2 || eps;
  }
  bool operator==(const ParamGroup&) const = default;
};
using ParamGroups = std::vector<ParamGroup>;

// Null: none. The first that matches has the parameter.
const ParamGroup* GroupOf(const ParamGroups& groups, std::string_view name);

// Gives each parameter the rule of its group, and whether it is trained. One that is not has no
// rule but the first. Error(kConfig): muon for what is no matrix between hidden states.
void ApplyGroups(const ParamGroups& groups, ModelSpec* spec);

}  // namespace millrace
