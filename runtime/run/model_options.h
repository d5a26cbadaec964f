// The model that a configuration asks for. Pure.
#pragma once

#include "models/model.h"
#include "runtime/config/config.h"

namespace millrace {

// optimizer.groups, as models and plans take them.
ParamGroups ParamGroupsOf(const OptimizerConfig& optimizer);

ModelOptions ModelOptionsOf(const Config& config);

}  // namespace millrace
