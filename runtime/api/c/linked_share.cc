// Weights of a linked run for other processes.
#include <unistd.h>

#include <exception>
#include <memory>

#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/shared_weights.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/api/memory_to_share.h"
#include "runtime/base/stream.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/gathered_blocks.h"

namespace millrace {
namespace {

void SyncQuietly(Stream& stream) noexcept {
  try {
    stream.Sync();
  } catch (const std::exception&) {  // what is thrown already says more
  }
}

}  // namespace

void LinkedRun::ShareWeights(mr_shared_weights* out) {
  std::unique_ptr<SharedWeights> weights;
  std::unique_ptr<GatheredBlocks> blocks;
  std::unique_ptr<SharedMemory> memory;  // null: this rank wants none
  Agree("mr_weights_export", [&] {
    if (out != nullptr) {
      RequireSized(out, "out");
      if (out->size < sizeof *out)  // a descriptor that nobody has room for is never closed
        throw CallError(MR_INVALID_ARGUMENT, "out.size is less than mr_shared_weights ever was");
    }
    RequireWeights();
    RequireStates();
    weights = std::make_unique<SharedWeights>(HuggingFaceTensors(session_->run().spec));
    blocks = std::make_unique<GatheredBlocks>(session_->engine());
    if (out != nullptr)
      memory = MemoryToShare(session_->device(), weights->bytes(), "weights of other processes");
  });
  mr_shared_weights shared{};
  Touch([&] {
    Engine& engine = session_->engine();
    auto& stream = engine.stream(StreamId::kCompute);
    try {
      blocks->ForEach(kMasterSlot.name, [&](const ParamBlock& block) {
        if (memory)
          weights->Write(engine.layout().param(block.param).spec.name, block, *memory,
                         engine.kernels(), stream);
      });
    } catch (...) {  // the memory goes, and copies to it are still to come
      SyncQuietly(stream);
      throw;
    }
    stream.Sync();
    if (!memory) return;
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
