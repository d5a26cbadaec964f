// Whether the state of training is what it must be, bit for bit: replicas that hold the same shard,
// a step that is run twice.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/step_scalars.h"
#include "runtime/exec/step_counters.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

class Engine;

// XXH3-128 of each of this rank's shards: master weights of all flat parameters, then each further
// slot of their update rule. Waits for the steps that were issued.
std::vector<std::string> HashShards(Engine& engine);

// "master weights of unit h.0", of the first of two lists of hashes that
// differs; "" where they are equal.
std::string FirstDifference(const ShardLayout& layout, const std::vector<std::string>& a,
                            const std::vector<std::string>& b);

// Collective. "" when all replicas of each shard hold the same bits; else the same words
// on every rank: the ranks that differ, and where. With three replicas or more the one
// that is alone is named first.
std::string DifferingReplicas(Engine& engine);

// This rank's state at one moment: 4 bytes of host memory for each number of its shards.
class KeptState {
 public:
  explicit KeptState(Engine& engine);
  // Puts it back: shards, scalars and counters. Every rank, or none: the next step then gathers
  // anew.
  void Restore(Engine& engine) const;

 private:
  std::vector<std::vector<float>> shards_;  // in the order of HashShards
  StepScalars scalars_;
  StepCounters counters_;
};

// A step that is run twice from one state: construct, run it, KeepFirst, run it again,
// Compare. Each run is collected or waited for here; of the second, the caller collects the
// scalars. It is counted once.
class StepTwice {
 public:
  explicit StepTwice(Engine& engine) : before_(engine) {}
  // Collects the step in flight and puts the state back.
  void KeepFirst(Engine& engine);
  // Collective. "" when both runs gave the same loss, norm and state on every rank; else the same
  // words on every rank: what differs, on which.
  std::string Compare(Engine& engine) const;

 private:
  KeptState before_;
  StepScalars scalars_;  // of the first run
  std::vector<std::string> hashes_;
};

}  // namespace millrace
