// Master weights of a run as DLPack tensors, where they lie.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/huggingface/tensors.h"
#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/millrace_dlpack.h"

namespace millrace {

// In the order of the model; a tensor that several parameters share stands once.
std::vector<HuggingFaceTensor> NamedWeights(const ModelSpec& spec);

// `tensor`, one of NamedWeights, read-only. Keeps the run's memory until its deleter is called; the
// run counts it meanwhile. CallError MR_UNSUPPORTED: this rank does not hold the whole tensor, or
// it is stored as parts of several parameters.
DLManagedTensorVersioned* Lend(const std::shared_ptr<LinkedRun>& run,
                               const HuggingFaceTensor& tensor);

}  // namespace millrace
