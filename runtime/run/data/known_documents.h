// Whether a run masks documents that nobody asked it to mask.
#pragma once

#include "runtime/config/config.h"
#include "runtime/config/load.h"

namespace millrace {

// All files that are trained on have an index of Megatron's, which says where documents begin.
bool FilesKnowDocuments(const Config& config);

// With a data.document_mask that is not null: that of a null is true where documents are known, by
// data.end_of_document or by the files, and masking them is allowed and costs no time, as on CPUs
// (a step takes 0.73 to 0.99 times as long). A note says so, or what stands against it. Where
// another program makes the steps, or no data is opened, it is false.
LoadedConfig WithDocumentMask(LoadedConfig loaded, const ConfigContext& context);

}  // namespace millrace
