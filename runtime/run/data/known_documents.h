// Whether a run could mask documents without being told how they end.
#pragma once

#include "runtime/config/config.h"

namespace millrace {

// All files that are trained on have an index of Megatron's, which says where documents begin.
bool FilesKnowDocuments(const Config& config);

}  // namespace millrace
