// Runs of the training loop on in-process ranks, each in a folder of its own, and the same steps
// without a loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/config/load.h"
#include "runtime/run/faults/train_faults.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {

struct Killed {};  // thrown by an observer: the run is gone, as after SIGKILL

// Of a tiny model on text: twelve steps, a checkpoint after every fourth.
class TrainingRun {
 public:
  TrainingRun(int world, std::vector<std::string> sets);

  // From the next call on.
  void Set(const std::string& key_and_value) { sets_.push_back(key_and_value); }

  std::string folder() const { return dir_ / "run"; }
  Config config() const { return Loaded().config; }

  // Warnings of rank 0, which on_step is called on.
  std::vector<std::string> Train(const std::vector<TrainFault>& faults = {},
                                 const std::function<void(const StepReport&)>& on_step = {},
                                 std::atomic<bool>* stop = nullptr) const;

  // Hashes after training each (step, data step), both from 1, from fresh weights.
  std::vector<std::string> Alone(const std::vector<std::pair<int64_t, int64_t>>& steps) const;

  nlohmann::json Summary() const;
  std::vector<std::string> Hashes() const;
  // Lines of metrics.jsonl, without what time and memory decide.
  std::vector<nlohmann::json> Lines() const;

 private:
  LoadedConfig Loaded() const;

  TempDir dir_;
  int world_;
  std::vector<std::string> sets_;
};

}  // namespace millrace::test
