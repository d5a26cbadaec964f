// optimizer.groups against the parameters that a model has. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/plan/layout/model_spec.h"

namespace millrace {

// Error(kConfig): a pattern that matches no parameter (with the nearest names), a group all of
// whose parameters are of groups ahead or follow a router's own rule, or nothing that is trained.
void CheckGroups(const OptimizerConfig& optimizer, const ModelSpec& spec);

// A line for each group and one for the rest: how much is of it. None where there are no groups.
std::vector<std::string> GroupNotes(const OptimizerConfig& optimizer, const ModelSpec& spec);

}  // namespace millrace
