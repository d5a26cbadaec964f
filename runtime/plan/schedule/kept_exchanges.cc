#include "runtime/plan/schedule/kept_exchanges.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/plan/cost/timeline.h"

namespace millrace {
namespace {

// The exchanges of a kind in a unit.
struct Candidate {
  UnitId unit;
  const NodeDef* kind = nullptr;
  int64_t exchanges = 0, held = 0, received = 0;  // a microbatch's
};

// Those whose results the backward asks for again.
std::vector<Candidate> CandidatesOf(const SemanticGraph& forward,
                                    const std::vector<UnitRecompute>& units) {
  const SemanticGraph graph = AddGradients(forward, units);
  std::map<std::pair<int32_t, std::string_view>, Candidate> by_unit;
  for (const Node& node : graph.backward) {
    if (!node.recomputed || node.kind->received == nullptr) continue;
    Candidate& of = by_unit[{node.unit.value, node.kind->name}];
    of.unit = node.unit;
    of.kind = node.kind;
    ++of.exchanges;
    of.held += BytesOf(graph.value(node.outputs[0]));
    of.received += node.kind->received(graph, node);
  }
  std::vector<Candidate> candidates;
  for (const auto& [key, of] : by_unit) candidates.push_back(of);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    const auto per_byte = [](const Candidate& c) {
      return static_cast<double>(c.received) / static_cast<double>(c.held);
    };
    return std::tuple(-per_byte(a), -a.unit.value, a.kind->name) <
           std::tuple(-per_byte(b), -b.unit.value, b.kind->name);
  });
  return candidates;
}

class Keeper {
 public:
  Keeper(const RecomputeInput& input, RecomputeChoice choice)
      : in_(input),
        choice_(std::move(choice)),
        options_(input.options),
        machine_(MachineOfChoices(input.options.backend, input.layout.mesh.world())),
        candidates_(CandidatesOf(input.forward, choice_.units)) {
    options_.budget_bytes = 0;
    if (options_.reshard == Reshard::kAuto) options_.reshard = Reshard::kAfterForward;
  }

  RecomputeChoice Run() && {
    for (const Candidate& candidate : candidates_) choice_.exchanges.all += candidate.exchanges;
    if (candidates_.empty()) return std::move(choice_);
    const Tried& none = Try(0);
    limit_ = LimitWith(none.arena);
    size_t best = 0;
    for (size_t kept = Most(); kept > 0; kept /= 2)
      if (Fits(kept) && Try(kept).seconds < Try(best).seconds) best = kept;
    for (size_t i = 0; i < best; ++i) {
      choice_.exchanges.kept += candidates_[i].exchanges;
      choice_.exchanges.held_bytes += candidates_[i].held;
      choice_.exchanges.wire_bytes += candidates_[i].received;
    }
    choice_.units = UnitsWith(best);
    return std::move(choice_);
  }

 private:
  struct Tried {
    int64_t arena = 0;
    double seconds = 0;
  };

  std::vector<UnitRecompute> UnitsWith(size_t kept) const {
    std::vector<UnitRecompute> units = choice_.units;
    for (size_t i = 0; i < kept; ++i)
      units[static_cast<size_t>(candidates_[i].unit.value)].kept.push_back(candidates_[i].kind);
    return units;
  }

  Program ProgramWith(size_t kept) const {
    return Lower(AddGradients(in_.forward, UnitsWith(kept)), in_.lower);
  }

  const Tried& Try(size_t kept) {
    const auto [it, added] = tried_.try_emplace(kept);
    if (!added) return it->second;
    const StepPlan plan = PlanStep(in_.layout, in_.states, ProgramWith(kept), options_, "train");
    it->second = {plan.arena_bytes,
                  Simulate(plan, plan.schedule, in_.layout.mesh, machine_).seconds};
    return it->second;
  }

  bool Fits(size_t kept) { return Try(kept).arena <= limit_; }

  // The bytes of a plan that gathers all weights again.
  int64_t LimitWith(int64_t arena_of_none) const {
    int64_t limit = in_.options.budget_bytes;
    if (limit > 0 && in_.device_bytes > 0) limit = std::min(limit, in_.device_bytes);
    if (limit == 0 && choice_.searched) limit = in_.device_bytes;
    if (in_.options.reshard == Reshard::kAuto)
      limit -= PlanStep(in_.layout, in_.states, ProgramWith(0), in_.options, "train").arena_bytes -
               arena_of_none;
    return std::max(limit, arena_of_none);
  }

  // The most that fit. An arena is never below its bound, which takes a fraction of the time and
  // is mostly met.
  size_t Most() {
    const auto bound = [&](size_t kept) {
      return DraftStep(in_.layout, in_.states, ProgramWith(kept), options_, "train").lower_bound;
    };
    size_t most = Largest(candidates_.size(), [&](size_t k) { return bound(k) <= limit_; });
    if (!Fits(most)) most = Largest(most - 1, [&](size_t k) { return Fits(k); });
    return most;
  }

  // Up to `most`, where 0 fits and more need more.
  template <class Fit>
  static size_t Largest(size_t most, Fit&& fit) {
    if (fit(most)) return most;
    size_t low = 0, high = most;
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      (fit(middle) ? low : high) = middle;
    }
    return low;
  }

  const RecomputeInput& in_;
  RecomputeChoice choice_;
  PlanOptions options_;
  Machine machine_;
  std::vector<Candidate> candidates_;
  int64_t limit_ = 0;
  std::map<size_t, Tried> tried_;  // by how many are kept
};

}  // namespace

RecomputeChoice KeepExchanges(const RecomputeInput& input, RecomputeChoice choice) {
  return Keeper(input, std::move(choice)).Run();
}

std::vector<UnitRecompute> KeepingAll(const SemanticGraph& forward,
                                      std::vector<UnitRecompute> units) {
  for (const Node& node : forward.forward) {
    if (node.kind->received == nullptr || !forward.IsBlock(node.unit)) continue;
    std::vector<const NodeDef*>& kept = units[static_cast<size_t>(node.unit.value)].kept;
    if (std::find(kept.begin(), kept.end(), node.kind) == kept.end()) kept.push_back(node.kind);
  }
  return units;
}

std::string ToString(const KeptExchanges& exchanges) {
  if (exchanges.kept == 0) return fmt::format("none of {}", exchanges.all);
  return fmt::format("{} of {} from forward to backward, {} bytes", exchanges.kept, exchanges.all,
                     exchanges.held_bytes);
}

}  // namespace millrace
