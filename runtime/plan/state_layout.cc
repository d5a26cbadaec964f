#include "runtime/plan/state_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {

BufferId StateLayout::Add(StateTensor tensor) {
  const BufferId id{static_cast<int32_t>(tensors.size())};
  const bool fresh =
      by_name_.emplace(tensor.name, id).second &&
      (tensor.slot.empty() || by_slot_.emplace(std::pair{tensor.flat, tensor.slot}, id).second);
  MR_CHECK(fresh, "two states of one run are called {}", tensor.name);
  const bool era = tensor.scope == StateScope::kEra;
  MR_CHECK(era || era_bytes == 0, "{}: states of the run come before those of an era", tensor.name);
  int64_t& end = era ? era_bytes : run_bytes;
  tensor.offset = era ? run_bytes + era_bytes : run_bytes;
  end += RoundUp(tensor.bytes(), kArenaAlignment);
  tensors.push_back(std::move(tensor));
  return id;
}

BufferId StateLayout::Find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? BufferId{} : it->second;
}

BufferId StateLayout::Of(std::string_view name) const {
  const BufferId id = Find(name);
  MR_CHECK(id, "the run has no state {}", name);
  return id;
}

BufferId StateLayout::Slot(std::string_view slot, FlatId flat) const {
  const auto it = by_slot_.find(std::pair{flat, std::string(slot)});
  return it == by_slot_.end() ? BufferId{} : it->second;
}

std::string ToString(const StateLayout& states) {
  static constexpr std::string_view kWriters[] = {"host", "prologue", "plans"};
  std::string text = fmt::format("run {} era {}\n", states.run_bytes, states.era_bytes);
  for (const StateTensor& t : states.tensors)
    fmt::format_to(std::back_inserter(text), "{} {} at {} {} by {}{}{}{}{}\n", t.name,
                   ToString(t.layout), t.offset, t.scope == StateScope::kRun ? "run" : "era",
                   kWriters[static_cast<size_t>(t.writer)], t.saved ? " saved" : "",
                   t.source ? " from " + states.tensor(t.source).name : "",
                   t.of_weights ? " of weights" : "", t.content.empty() ? "" : " =" + t.content);
  return text;
}

const StepPlan* RunPlans::Find(std::string_view name) const {
  const auto it = std::find_if(plans.begin(), plans.end(),
                               [&](const StepPlan& plan) { return plan.name == name; });
  return it == plans.end() ? nullptr : &*it;
}

const StepPlan& RunPlans::Of(std::string_view name) const {
  const StepPlan* plan = Find(name);
  MR_CHECK(plan != nullptr, "this run has no {} plan", name);
  return *plan;
}

std::vector<const StepPlan*> RunPlans::All() const {
  std::vector<const StepPlan*> all;
  for (const StepPlan& plan : plans) all.push_back(&plan);
  return all;
}

}  // namespace millrace
