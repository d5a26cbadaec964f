// The model that a configuration asks for. Pure.
#pragma once

#include "models/model.h"
#include "runtime/config/config.h"

namespace millrace {

ModelOptions ModelOptionsOf(const Config& config);

}  // namespace millrace
