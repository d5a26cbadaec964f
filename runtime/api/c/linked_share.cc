// Weights of a linked run for other processes.
#include <unistd.h>

#include <cstddef>
#include <memory>

#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/shared_weights.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/api/memory_to_share.h"
#include "runtime/base/stream.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"

namespace millrace {

void LinkedRun::ShareWeights(mr_shared_weights* out) {
  std::unique_ptr<SharedWeights> weights;
  std::unique_ptr<SharedMemory> memory;  // null: this rank wants none
  Agree([&] {
    if (out != nullptr) {
      RequireSized(out, "out");
      if (out->size < sizeof *out)  // a descriptor that nobody has room for is never closed
        throw CallError(MR_INVALID_ARGUMENT, "out.size is less than mr_shared_weights ever was");
    }
    RequireWeights();
    RequireStates();
    weights = std::make_unique<SharedWeights>(HuggingFaceTensors(session_->run().spec));
    if (out != nullptr)
      memory = MemoryToShare(session_->device(), weights->bytes(), "weights of other processes");
  });
  mr_shared_weights shared{};
  Touch([&] {
    Engine& engine = session_->engine();
    auto& stream = engine.stream(StreamId::kCompute);
    ForEachLogicalTensor(
        engine, kMasterSlot.name,
        [&](const ParamPlacement& param, const TensorView& values) {
          if (memory) weights->Place(param.spec.name, values, *memory, engine.kernels(), stream);
        },
        [&](const ParamPlacement& param, std::span<const float> values) {
          if (memory) weights->Write(param.spec.name, values, *memory);
        });
    if (!memory) return;
    stream.Sync();
    manifest_ = weights->Manifest(*memory, version_);
    shared.on_gpu = memory->gpu().empty() ? 0 : 1;
    shared.bytes = memory->bytes();
    shared.version = version_;
    shared.manifest = manifest_.c_str();
    shared.fd = memory->Share();
  });
  if (memory) WriteSized(shared, out);
}

}  // namespace millrace
