// Plans, proves and trains any Model on ranks as threads over the CPU's kernels: for families that
// no configuration names.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/schedule/planner.h"

namespace millrace::test {

struct ModelRun {
  Mesh mesh;
  PrecisionPolicy precision;
  LinearEncoding linears = LinearEncoding::kCompute;
  Recompute recompute = Recompute::kNone;
  PlanOptions options;  // of 2 sequences of 7
  EngineOptions engine;

  ModelRun() { options.shape = {.batch = 2, .seq = 7}; }
};

// Calls fn on every rank's thread, with an engine over the model's training and evaluation plans.
void RunModel(const Model& model, const ModelRun& run,
              const std::function<void(Engine& engine, int rank)>& fn);

// Of every parameter, by name: the gradient of the first step, which has just run, from AdamW's
// first moments; where the run does not clip. A collective.
std::map<std::string, std::vector<float>> FirstGradients(Engine& engine,
                                                         const PlanOptions& options);

}  // namespace millrace::test
