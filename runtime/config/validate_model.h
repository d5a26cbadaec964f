// The rules between the keys of `model`, and between them and those that cut its blocks.
#pragma once

#include <vector>

#include "runtime/config/validate.h"

namespace millrace {

// Adds to `problems` what is wrong with config.model. Each key lies in its range.
void ValidateModel(const Config& config, std::vector<ConfigProblem>* problems);

}  // namespace millrace
