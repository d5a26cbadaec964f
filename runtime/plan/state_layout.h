// What a run keeps in the arena between its plans, and where: weights, moments, what the host hands
// to a step, constants, caches. Computed once from all programs of the run (PlanStates), and an
// input of each of its plans: so all plans find a state at one address.
//
// Scopes  [0, run_bytes) of the arena hold the states of the run, always. Those of an era (gathered
//         weights and caches of inference) lie behind them, in [run_bytes, run_bytes + era_bytes).
//         Plans that use them lay nothing else there; all others may, and training lays its
//         activations there. An era begins with the prologue of one of its plans and ends when a
//         plan runs that does not use its states: then they are gone.
// Valid   Which states hold what they should, as plans follow each other, is StateValidity's
//         (check/seams.h): one rule for the proof before step 0 and for the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/layout/update_rule.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

enum class StateScope { kRun, kEra };

enum class StateWriter {
  kHost,      // before a plan runs: initial values, a checkpoint, a step's tokens; also by plans
  kPrologue,  // made from other states, constant, or a cache, which begins as zeros: by the
              // prologue of each plan that reads it
  kPlans,     // by the schedule of one plan for others: statistics, tallies, scratch
};

// Of an input: rows of `positions` and `extra` elements. The host gives all but the last `filled`
// of each, which are -1 (of f32: 0). Ranks that share sequences take their chunks of them.
struct InputWindow {
  int64_t positions = 0, extra = 0, filled = 0;
  bool operator==(const InputWindow&) const = default;
};

struct StateTensor {
  std::string name;  // unique in the run; what checkpoints call it: it stays what it is
  Layout layout;     // dense
  BufferClass cls = BufferClass::kRuntime;
  StateScope scope = StateScope::kRun;
  StateWriter writer = StateWriter::kHost;
  bool saved = false;      // part of a checkpoint
  bool by_parity = false;  // two halves, of which StepScalars::token_parity names one
  std::string slot = {};   // "adam_m": of the flat parameter below, one per flat
  FlatId flat = {};
  BufferId source = {};      // kPrologue: the state that it is made from; none: a constant
  bool of_weights = false;   // as if made from all master weights: stale once one is written
  std::string content = {};  // a constant's, a cache's: what makes it. Other content, other state
  InputWindow window = {};
  bool weighs = false;  // of an input: weights of a loss's targets (LossSpec::weights)
  int64_t offset = 0;   // of the arena, for either scope; bytes

  int64_t bytes() const { return layout.numel() * Bytes(layout.dtype); }
  bool operator==(const StateTensor&) const = default;
};

struct StateLayout {
  std::vector<StateTensor> tensors;  // run scope first; by the BufferId that they have in all plans
  int64_t run_bytes = 0, era_bytes = 0;

  // Appends at the end of its scope. Error(kInternal): the name is taken; a state of the run behind
  // those of an era.
  BufferId Add(StateTensor tensor);
  BufferId Find(std::string_view name) const;  // none: absent
  BufferId Of(std::string_view name) const;    // Error(kInternal): absent
  // A slot of a flat parameter, by what it is. None: absent.
  BufferId Slot(std::string_view slot, FlatId flat) const;
  const StateTensor& tensor(BufferId id) const { return tensors[static_cast<size_t>(id.value)]; }
  bool Has(BufferId id) const { return static_cast<size_t>(id.value) < tensors.size(); }
  IdRange<BufferId> ids() const { return IdsOf<BufferId>(tensors.size()); }
  View ViewOf(BufferId id) const { return {.buffer = id, .layout = tensor(id).layout}; }

  bool operator==(const StateLayout&) const = default;

 private:
  std::unordered_map<std::string, BufferId> by_name_;
  std::map<std::pair<FlatId, std::string>, BufferId, std::less<>> by_slot_;
};

// One line per state.
std::string ToString(const StateLayout& states);

// The plans of a run, by name, over one layout of states.
struct RunPlans {
  StateLayout states;
  std::vector<StepPlan> plans;

  const StepPlan* Find(std::string_view name) const;  // null: the run has no such plan
  const StepPlan& Of(std::string_view name) const;    // Error(kInternal): it has none
  std::vector<const StepPlan*> All() const;
};

}  // namespace millrace
