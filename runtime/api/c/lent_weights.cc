#include "runtime/api/c/lent_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/api/backend.h"
#include "runtime/api/c/status.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

constexpr size_t kMostDims = 4;

// A tensor that is lent, with all that it points to.
struct Lent {
  DLManagedTensorVersioned tensor{};
  std::array<int64_t, kMostDims> shape{}, strides{};
  std::shared_ptr<LinkedRun> run;
};

void Return(DLManagedTensorVersioned* tensor) {
  auto* const lent = static_cast<Lent*>(tensor->manager_ctx);
  DeviceOfThread thread;  // where the run ends, if this is the last of it
  std::shared_ptr<LinkedRun> run = std::move(lent->run);
  delete lent;
  run->TakeBack();
  mr_status_free(Guarded([&] {
    thread.Use(run->session().device());
    run.reset();
  }));
}

ParamId Find(const ShardLayout& layout, const std::string& name) {
  for (size_t p = 0; p < layout.params.size(); ++p)
    if (layout.params[p].spec.name == name) return ParamId{static_cast<int32_t>(p)};
  MR_FAIL("no parameter {} in the layout", name);
}

// Where the parameter begins in this rank's shard, which has all of it in one piece.
int64_t WholeAt(const ShardLayout& layout, ParamId param, int rank, const std::string& name) {
  std::vector<ParamRun> runs;
  ForEachRun(layout, param, rank, [&](const ParamRun& run) { runs.push_back(run); });
  if (runs.size() != 1 || runs.front().numel != layout.param(param).spec.numel())
    throw CallError(MR_UNSUPPORTED,
                    fmt::format("{}: rank {} does not hold all of it in one piece; weights are "
                                "lent where they lie (parallel.shard, tensor and expert 1: each "
                                "rank has them whole)",
                                name, rank));
  return runs.front().local;
}

}  // namespace

std::vector<HuggingFaceTensor> NamedWeights(const ModelSpec& spec) {
  std::vector<HuggingFaceTensor> named;
  for (HuggingFaceTensor& tensor : HuggingFaceTensors(spec))
    if (named.empty() || named.back().name != tensor.name) named.push_back(std::move(tensor));
  return named;
}

DLManagedTensorVersioned* Lend(const std::shared_ptr<LinkedRun>& run,
                               const HuggingFaceTensor& tensor) {
  Engine& engine = run->session().engine();
  if (tensor.stored_columns > 0)
    throw CallError(MR_UNSUPPORTED, tensor.name +
                                        " is stored as columns of two parameters, and "
                                        "weights are lent where they lie");
  const ShardLayout& layout = engine.layout();
  const ParamId param = Find(layout, tensor.param);
  const int64_t begin = WholeAt(layout, param, run->session().rank(), tensor.name);
  const TensorView shard = engine.ShardView(kMasterSlot.name, layout.param(param).flat);
  MR_CHECK(shard.dtype() == DType::kF32 && tensor.shape.size() <= kMostDims,
           "master weights of {} are {}, in {} dims", tensor.name, Name(shard.dtype()),
           tensor.shape.size());
  auto lent = std::make_unique<Lent>();
  WaitForAllOf(engine.device());  // whatever stream they are read on
  const DLDevice device = {engine.device().captures() ? kDLCUDA : kDLCPU,
                           OrdinalOf(engine.device())};
  const size_t dims = tensor.shape.size();
  std::copy(tensor.shape.begin(), tensor.shape.end(), lent->shape.begin());
  int64_t stride = 1;
  for (size_t i = dims; i-- > 0; stride *= tensor.shape[i]) lent->strides[i] = stride;
  if (tensor.transposed) lent->strides = {1, tensor.columns};
  lent->tensor.version = {1, 1};
  lent->tensor.manager_ctx = lent.get();
  lent->tensor.deleter = Return;
  lent->tensor.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  lent->tensor.dl_tensor = {shard.as<float>() + begin + tensor.first_row * tensor.columns,
                            device,
                            static_cast<int32_t>(dims),
                            {kDLFloat, 32, 1},
                            lent->shape.data(),
                            lent->strides.data(),
                            0};
  lent->run = run;
  ++run->lent();
  return &lent.release()->tensor;
}

}  // namespace millrace
