// The configuration's side of exchange.h.
#pragma once

#include <string>

#include "runtime/config/config.h"

namespace millrace {

// The defaults behind nulls, written out, so that keys can be compared one by one.
ModelConfig Resolved(ModelConfig model);

// Error(kConfig) naming each key in which the model is another than folder/config.json's.
void RequireModelOf(const std::string& folder, const ModelConfig& model);

}  // namespace millrace
