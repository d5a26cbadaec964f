// The reference data of tests/golden as a test reads it, and a session that is fed with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/step_scalars.h"
#include "runtime/config/load.h"
#include "runtime/run/session.h"

namespace millrace::test {

using Tensors =
    std::map<std::string, std::vector<double>>;  // by Hugging Face name, as stored there

// Those of a file, less the prefix that all of them have; F64.
Tensors ReadTensors(const std::string& path, const std::string& prefix);

struct Golden {
  explicit Golden(const std::string& model);
  // The same model and tokens, trained by Muon beside AdamW: `params`, and in `json` what
  // tests/golden/muon has.
  static Golden WithMuon(const std::string& model) { return Otherwise("muon", model); }
  // The same with optimizer.groups: what tests/golden/groups has, and in `json` the names that are
  // "frozen".
  static Golden WithGroups(const std::string& model) { return Otherwise("groups", model); }

  std::string folder;           // tests/golden/<model>
  nlohmann::json json;          // golden.json
  std::vector<int32_t> tokens;  // [steps, batch, seq + 1]
  std::vector<double> logits;   // [batch, seq, vocab] of step 0, before any update
  // Not of the models of make_fp8.py, whose `encodings` have theirs.
  Tensors grads;   // of step 0's loss
  Tensors params;  // after all steps
  int64_t steps = 0, batch = 0, seq = 0, vocab = 0;

  std::string Hf() const { return folder + "/hf"; }
  std::span<const int32_t> Row(int64_t step, int64_t row) const;  // [seq + 1]

 private:
  static Golden Otherwise(const std::string& how, const std::string& model);
};

// How the rows of a batch are spread. Each data rank has micro_batch * accumulate of them: a part
// of the batch, or the whole batch, from another row on each data rank. Every row is used equally
// often, so loss and gradients, means over tokens, are the batch's.
struct Spread {
  int replicate = 1, shard = 1;
  int64_t micro_batch = 1, accumulate = 1;
  int context = 1, tensor = 1, strips = 1;
  int data_ranks() const { return replicate * shard; }
  int world() const { return data_ranks() * context * tensor; }
  // The i-th row of a rank, and of all of its data rank.
  int64_t Row(int64_t rank, int64_t i, int64_t batch) const {
    const int64_t begin = rank / (context * tensor) * micro_batch * accumulate;
    return (begin + begin / batch + i) % batch;
  }
  std::string Text() const;
};

// The configuration of the golden run: the model from hf/ by model.init_from, the optimizer of
// golden.json, then `sets`.
LoadedConfig GoldenConfig(const Golden& golden, const Spread& spread,
                          const std::vector<std::string>& sets = {});

// Runs fn on spread.world() in-process ranks, each with a session whose weights are
// those of model.init_from.
void RunSessions(const LoadedConfig& config, int world, const PlanSelection& plans,
                 const std::function<void(Session& session)>& fn);

// One step of the golden batch `step` on this rank.
StepScalars StepOn(Session& session, const Golden& golden, const Spread& spread, int64_t step);

// Of the batch of step 0 whatever the weights: of each position, as generation has them.
std::vector<double> AllLogits(Session& session, const Golden& golden);

struct FirstStep {
  std::vector<double> logits;
  Tensors grads;
};
FirstStep RunFirstStep(const Golden& golden, const Spread& spread, std::vector<std::string> sets);

struct Trajectory {
  std::vector<double> loss, grad_norm, lr;
  Tensors params;
};
Trajectory RunTrajectory(const Golden& golden, const Spread& spread,
                         const std::vector<std::string>& sets);

// Logical tensors of the session under their Hugging Face names. A collective.
Tensors HuggingFaceState(Session& session, std::string_view kind);

}  // namespace millrace::test
