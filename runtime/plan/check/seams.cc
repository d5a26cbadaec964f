#include "runtime/plan/check/seams.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/check/checker_shards.h"

namespace millrace {
namespace {

bool Contains(const std::vector<BufferId>& ids, BufferId id) {
  return std::binary_search(ids.begin(), ids.end(), id);
}

const Seam& SeamOf(const StepPlan& plan, bool prologue) {
  return prologue ? plan.prologue_seam : plan.seam;
}

}  // namespace

StateValidity::StateValidity(const StateLayout& states, std::vector<const StepPlan*> plans)
    : states_(&states),
      plans_(std::move(plans)),
      valid_(states.tensors.size()),
      carried_(plans_.size()),
      lost_(states.tensors.size(), -1) {
  std::multimap<BufferId, BufferId> copies;
  for (const BufferId copy : valid_.ids()) {
    const StateTensor& state = states.tensor(copy);
    if (state.source) copies.emplace(state.source, copy);
    if (!state.of_weights) continue;
    for (const BufferId weights : valid_.ids())
      if (states.tensor(weights).slot == kMasterSlot.name) copies.emplace(weights, copy);
  }
  copies_ = std::make_shared<const std::multimap<BufferId, BufferId>>(std::move(copies));
}

void StateValidity::Write(BufferId state) {
  valid_[state] = true;
  for (auto [copy, end] = copies_->equal_range(state); copy != end; ++copy)
    valid_[copy->second] = false;
}

void StateValidity::HostWrites(BufferId state) {
  Write(state);
  for (size_t p = 0; p < plans_.size(); ++p)
    if (Contains(plans_[p]->prologue_seam.reads, state)) carried_[p] = false;
}

bool StateValidity::NeedsPrologue(size_t plan) const {
  const std::vector<BufferId>& reads = plans_[plan]->seam.reads;
  return std::any_of(reads.begin(), reads.end(), [&](BufferId id) {
    if (!IsState(id)) return !carried_[plan];
    return states_->tensor(id).writer == StateWriter::kPrologue && !valid(id);
  });
}

BufferId StateValidity::Missing(size_t plan, bool prologue) const {
  for (const BufferId id : SeamOf(*plans_[plan], prologue).reads)
    if (IsState(id) ? !valid(id) : !carried_[plan]) return id;
  return {};
}

std::string StateValidity::Describe(size_t plan, BufferId missing) const {
  const StepPlan& reader = *plans_[plan];
  if (!IsState(missing))
    return fmt::format("the {} plan reads {}, which its prologue does not leave", reader.name,
                       reader.buffer(missing).name);
  const int lost = lost_[missing];
  return fmt::format(
      "the {} plan reads the state {}, which {}", reader.name, states_->tensor(missing).name,
      lost < 0 ? "nobody has defined, or not since what it is made from was written"
               : fmt::format("the {} plan has run over", plans_[static_cast<size_t>(lost)]->name));
}

void StateValidity::Ran(size_t plan, bool prologue) {
  const StepPlan& ran = *plans_[plan];
  const Seam& seam = SeamOf(ran, prologue);
  for (const BufferId id : valid_.ids())
    if (valid_[id] && states_->tensor(id).offset >= ran.persistent_bytes) {
      valid_[id] = false;
      lost_[id] = static_cast<int>(plan);
    }
  // What it defines beside its source follows that source.
  for (const BufferId id : seam.defines)
    if (IsState(id)) Write(id);
  for (const BufferId id : seam.defines)
    if (IsState(id)) {
      valid_[id] = true;
      lost_[id] = -1;
    }
  carried_.assign(carried_.size(), false);
  carried_[plan] = std::all_of(ran.seam.reads.begin(), ran.seam.reads.end(), [&](BufferId id) {
    return IsState(id) || Contains(seam.defines, id);
  });
}

namespace {

class SeamProof {
 public:
  SeamProof(const RunPlans& run, size_t limit, Violations* found)
      : states_(run.states), plans_(run.All()), limit_(limit), found_(found) {}

  void Run() {
    StatesApart();
    for (const StepPlan* plan : plans_) StatesInPlace(*plan);
    if (found_->empty()) EveryOrder();
  }

 private:
  void Report(ViolationKind kind, std::string message) {
    const auto same = [&](const Violation& v) { return v.message == message; };
    if (found_->size() < limit_ && std::none_of(found_->begin(), found_->end(), same))
      found_->push_back({kind, std::move(message)});
  }

  void StatesApart() {
    std::vector<const StateTensor*> by_offset;
    for (const StateTensor& state : states_.tensors) {
      by_offset.push_back(&state);
      const bool run = state.scope == StateScope::kRun;
      const int64_t low = run ? 0 : states_.run_bytes,
                    high = states_.run_bytes + (run ? 0 : states_.era_bytes);
      if (state.offset < low || state.offset + state.bytes() > high ||
          state.offset % kArenaAlignment != 0)
        Report(ViolationKind::kBounds,
               fmt::format("the state {} at [{}, {}) leaves its scope, [{}, {}), or is not aligned",
                           state.name, state.offset, state.offset + state.bytes(), low, high));
    }
    std::stable_sort(
        by_offset.begin(), by_offset.end(),
        [](const StateTensor* a, const StateTensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i)
      if (const StateTensor& a = *by_offset[i - 1], &b = *by_offset[i];
          a.offset + a.bytes() > b.offset)
        Report(ViolationKind::kOverlap, fmt::format("the states {} and {} share bytes from {} on",
                                                    a.name, b.name, b.offset));
  }

  void StatesInPlace(const StepPlan& plan) {
    if (plan.buffers.size() < states_.tensors.size())
      return Report(ViolationKind::kStructure,
                    fmt::format("the {} plan was made for other states", plan.name));
    bool in_era = false;
    for (size_t s = 0; s < states_.tensors.size(); ++s) {
      const StateTensor& state = states_.tensors[s];
      const PlanBuffer& buffer = plan.buffers[s];
      const bool era = state.scope == StateScope::kEra;
      in_era |= era && !buffer.offsets.empty();
      const bool placed = buffer.offsets == std::vector<int64_t>{state.offset};
      if (buffer.name != state.name || buffer.bytes != state.bytes() ||
          buffer.scope != (era ? BufferScope::kEra : BufferScope::kPersistent) ||
          !(placed || (era && buffer.offsets.empty())))
        Report(ViolationKind::kStructure,
               fmt::format("the {} plan has {} where the run has the state {} of the {} at {}",
                           plan.name, buffer.name, state.name, era ? "era" : "run", state.offset));
    }
    const int64_t states_end = states_.run_bytes + (in_era ? states_.era_bytes : 0);
    if (plan.persistent_bytes != states_end)
      Report(ViolationKind::kStructure,
             fmt::format("the {} plan keeps [0, {}) for states, which end at {}", plan.name,
                         plan.persistent_bytes, states_end));
    for (size_t b = states_.tensors.size(); b < plan.buffers.size(); ++b)
      if (IsState(plan.buffers[b].scope))
        Report(ViolationKind::kStructure, fmt::format("{} of the {} plan is no state of the run",
                                                      plan.buffers[b].name, plan.name));
  }

  // What the host, or another plan at its wish, has to provide before the plan can be run.
  bool Runnable(const StateValidity& at, const StepPlan& plan) const {
    for (const bool prologue : {false, true})
      for (const BufferId id : SeamOf(plan, prologue).reads) {
        if (!states_.Has(id) || at.valid(id)) continue;
        const StateTensor& state = states_.tensor(id);
        if (state.writer == StateWriter::kPlans ||
            (state.writer == StateWriter::kHost && state.scope == StateScope::kEra))
          return false;
      }
    return true;
  }

  void HostWritesAll(StateValidity* at) const {
    for (const BufferId id : states_.ids())
      if (states_.tensor(id).writer == StateWriter::kHost) at->HostWrites(id);
  }

  bool Finds(const StateValidity& at, size_t plan, bool prologue) {
    const BufferId missing = at.Missing(plan, prologue);
    if (missing) Report(ViolationKind::kUndefined, at.Describe(plan, missing));
    return !missing;
  }

  // Every moment that a run can come to, from the one where the host has written what it writes.
  void EveryOrder() {
    StateValidity first(states_, plans_);
    HostWritesAll(&first);
    std::set<StateValidity> seen = {first};
    std::deque<StateValidity> todo = {first};
    std::vector<bool> ran(plans_.size());
    const auto reach = [&](const StateValidity& next) {
      if (seen.insert(next).second) todo.push_back(next);
    };
    for (; !todo.empty() && found_->size() < limit_; todo.pop_front()) {
      StateValidity written = todo.front();
      HostWritesAll(&written);
      reach(written);
      for (size_t p = 0; p < plans_.size(); ++p) {
        StateValidity at = todo.front();
        if (!Runnable(at, *plans_[p])) continue;
        if (at.NeedsPrologue(p)) {
          if (!Finds(at, p, true)) continue;
          at.Ran(p, true);
        }
        if (!Finds(at, p, false)) continue;
        at.Ran(p, false);
        ran[p] = true;
        reach(at);
      }
    }
    for (size_t p = 0; p < plans_.size() && found_->empty(); ++p)
      if (!ran[p])
        Report(ViolationKind::kUndefined,
               fmt::format("{}: no plan leaves it", first.Describe(p, first.Missing(p, false))));
  }

  const StateLayout& states_;
  const std::vector<const StepPlan*> plans_;
  const size_t limit_;
  Violations* found_;
};

}  // namespace

namespace {

// Along which axes the layout has the shards of weights, of copies of them and of moments.
ShardAxes ShardAxesOf(const StateLayout& states, const ShardLayout& layout) {
  ShardAxes axes;
  for (size_t s = 0; s < states.tensors.size(); ++s) {
    const StateTensor& state = states.tensors[s];
    if (state.slot.empty() || state.scope == StateScope::kEra) continue;  // an era's are whole
    axes[{static_cast<int32_t>(s)}] = layout.mesh.Wide(layout.flat(state.flat).shard);
  }
  return axes;
}

}  // namespace

Violations FindSeamViolations(const RunPlans& run, const ShardLayout& layout, size_t limit) {
  Violations found;
  SeamProof(run, limit, &found).Run();
  const ShardAxes states = ShardAxesOf(run.states, layout);
  for (const StepPlan& plan : run.plans)
    if (found.size() < limit) FindShardViolations(plan, layout.mesh, states, &found);
  return found;
}

void CheckSeams(const RunPlans& run, const ShardLayout& layout) {
  const Violations found = FindSeamViolations(run, layout, 3);
  if (found.empty()) return;
  std::string text = "the plans of this run do not fit together";
  for (const Violation& violation : found) text += "\n  " + violation.message;
  throw Error(ErrorCode::kInternal, text);
}

}  // namespace millrace
