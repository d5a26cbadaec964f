#include "runtime/plan/schedule/recompute.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/plan/cost/timeline.h"

namespace millrace {
namespace {

// In the first so many block units: each cheap kind (CheapKinds), all that is dear.
struct Prefixes {
  std::vector<int64_t> cheap;
  int64_t everything = 0;
  auto operator<=>(const Prefixes&) const = default;
};

RecomputeCounts CountsOf(const SemanticGraph& graph, const std::vector<UnitRecompute>& units) {
  RecomputeCounts counts;
  const std::vector<const NodeDef*> kinds = CheapKinds(graph);
  for (const NodeDef* kind : kinds) counts.cheap.push_back({std::string(kind->name), 0});
  for (size_t u = 0; u < units.size(); ++u) {
    if (!graph.IsBlock(u)) continue;
    ++counts.blocks;
    for (size_t k = 0; k < kinds.size(); ++k)
      counts.cheap[k].units += std::count(units[u].cheap.begin(), units[u].cheap.end(), kinds[k]);
    counts.everything += units[u].dear;
  }
  return counts;
}

class Search {
 public:
  explicit Search(const RecomputeInput& input)
      : in_(input),
        options_(input.options),
        machine_(MachineOfChoices(input.options.backend, input.layout.mesh.world())),
        kinds_(CheapKinds(input.forward)) {
    options_.budget_bytes = 0;
    if (options_.reshard == Reshard::kAuto) options_.reshard = Reshard::kAfterForward;
    for (size_t u = 0; u < in_.forward.unit_names.size(); ++u)
      if (in_.forward.IsBlock(u)) blocks_.push_back(u);
  }

  RecomputeChoice Run() {
    const int64_t limit = in_.options.budget_bytes > 0 ? in_.options.budget_bytes
                                                       : std::max<int64_t>(in_.device_bytes, 0);
    const int64_t all = static_cast<int64_t>(blocks_.size());
    const Prefixes none = Prefix(0, 0), cheap = Prefix(all, 0), most = Prefix(all, all);
    // An arena is never below its bound, which takes a fraction of the time.
    const auto may_fit = [&](const Prefixes& p) { return limit == 0 || Bound(p) <= limit; };
    const auto fits = [&](const Prefixes& p) {
      return may_fit(p) && (limit == 0 || Arena(p) <= limit);
    };
    if (fits(none)) return Chosen(none);
    if (fits(cheap)) {
      const std::vector<Prefixes> steps = Undercut(all);
      return Chosen(
          Trimmed(FirstFitting(steps, 0, steps.size() - 1, may_fit, fits), may_fit, fits));
    }
    if (fits(most)) {
      std::vector<Prefixes> steps;
      for (int64_t n = 0; n <= all; ++n) steps.push_back(Prefix(all, n));
      return Chosen(FirstFitting(steps, 0, steps.size() - 1, may_fit, fits));
    }
    const int64_t least = std::min(Arena(cheap), Arena(most));
    MR_REQUIRE(ErrorCode::kDoesNotFit, in_.options.budget_bytes == 0,
               "the plan needs {} bytes per rank even with every block computed again "
               "(memory.recompute=auto), memory.budget_gib allows {}; smaller train.micro_batch or "
               "more ranks need less",
               least, in_.options.budget_bytes);
    return Chosen(Arena(most) <= Arena(cheap) ? most : cheap);
  }

 private:
  // All cheap kinds in the first `cheap` block units, everything in the first `everything`.
  Prefixes Prefix(int64_t cheap, int64_t everything) const {
    return {std::vector<int64_t>(kinds_.size(), cheap), everything};
  }

  std::vector<UnitRecompute> UnitsOf(const Prefixes& p) const {
    std::vector<UnitRecompute> units(in_.forward.unit_names.size());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      for (size_t k = 0; k < kinds_.size(); ++k)
        if (n < p.cheap[k]) units[blocks_[i]].cheap.push_back(kinds_[k]);
      units[blocks_[i]].dear = n < p.everything;
    }
    return units;
  }

  Program ProgramOf(const Prefixes& p) const {
    return Lower(AddGradients(in_.forward, UnitsOf(p)), in_.lower);
  }

  StepPlan Draft(const Prefixes& p) const {
    return DraftStep(in_.layout, in_.states, ProgramOf(p), options_, "train");
  }

  // On the arena's bytes.
  int64_t Bound(const Prefixes& p) {
    const auto [it, added] = bounds_.try_emplace(p);
    if (added) it->second = Draft(p).lower_bound;
    return it->second;
  }

  // That the compute stream is busy. Asked of a few alone: simulating takes its time.
  double Seconds(const Prefixes& p) const {
    const StepPlan plan = Draft(p);
    return Simulate(plan, plan.schedule, in_.layout.mesh, machine_)
        .busy[static_cast<size_t>(StreamId::kCompute)];
  }

  int64_t Arena(const Prefixes& p) {
    const auto [it, added] = arenas_.try_emplace(p);
    if (added)
      it->second = PlanStep(in_.layout, in_.states, ProgramOf(p), options_, "train").arena_bytes;
    return it->second;
  }

  // Some prefixes, as far as units and kinds just add up: the bytes of what is dropped, and of the
  // seconds that a kind takes in all units the same share.
  struct Saving {
    double seconds = 0;
    int64_t bytes = 0;
    Prefixes prefixes;
  };

  // Of recomputing the kind `k` alone in the first n block units, by n from 0.
  std::vector<Saving> SavingsOf(size_t k, int64_t all, double without) const {
    std::vector<int64_t> dropped(in_.forward.unit_names.size());
    for (const Node& node : in_.forward.forward) {
      if (node.kind != kinds_[k]) continue;
      for (const ValueId id : node.outputs) {
        if (!id) continue;
        dropped[static_cast<size_t>(node.unit.value)] += BytesOf(in_.forward.value(id));
      }
    }
    std::vector<Saving> savings = {{0, 0, Prefix(0, 0)}};
    for (const size_t u : blocks_) {
      savings.push_back(savings.back());
      savings.back().bytes += dropped[u];
      ++savings.back().prefixes.cheap[k];
    }
    Prefixes alone = Prefix(0, 0);
    alone.cheap[k] = all;
    const double seconds = std::max(0.0, Seconds(alone) - without);
    const auto total = static_cast<double>(std::max<int64_t>(savings.back().bytes, 1));
    for (Saving& saving : savings)
      saving.seconds = seconds * (static_cast<double>(saving.bytes) / total);
    return savings;
  }

  // Those that no cheaper one undercuts, dearer and saving more from one to the next.
  static std::vector<Saving> Best(std::vector<Saving> savings) {
    std::sort(savings.begin(), savings.end(), [](const Saving& x, const Saving& y) {
      return std::tuple(x.seconds, -x.bytes, x.prefixes) <
             std::tuple(y.seconds, -y.bytes, y.prefixes);
    });
    std::vector<Saving> best;
    int64_t bytes = -1;
    for (Saving& saving : savings) {
      if (saving.bytes <= bytes) continue;
      bytes = saving.bytes;
      best.push_back(std::move(saving));
    }
    return best;
  }

  // Combinations of prefixes from nothing to all.
  std::vector<Prefixes> Undercut(int64_t all) const {
    const double without = Seconds(Prefix(0, 0));
    std::vector<Saving> best = {{0, 0, Prefix(0, 0)}};
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const std::vector<Saving> alone = SavingsOf(k, all, without);
      std::vector<Saving> both;
      for (const Saving& a : best)
        for (const Saving& b : alone) {
          both.push_back({a.seconds + b.seconds, a.bytes + b.bytes, a.prefixes});
          both.back().prefixes.cheap[k] = b.prefixes.cheap[k];
        }
      best = Best(std::move(both));
    }
    std::vector<Prefixes> steps;
    if (best.front().bytes > 0) steps.push_back(Prefix(0, 0));  // where something is for nothing
    for (const Saving& saving : best) steps.push_back(saving.prefixes);
    return steps;
  }

  // The first of steps (low, high] that fits, of which the last does.
  template <class Fits>
  static size_t Bisect(const std::vector<Prefixes>& steps, size_t low, size_t high, Fits&& fits) {
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      (fits(steps[middle]) ? high : low) = middle;
    }
    return high;
  }

  // steps.back() fits, steps[low] does not. The first whose bound allows it, of which steps[high]
  // is one, and nearly always that one fits; else the first behind it.
  template <class MayFit, class Fits>
  static Prefixes FirstFitting(const std::vector<Prefixes>& steps, size_t low, size_t high,
                               MayFit&& may_fit, Fits&& fits) {
    const size_t last = steps.size() - 1, first = Bisect(steps, low, high, may_fit);
    return steps[first == last || fits(steps[first]) ? first : Bisect(steps, first, last, fits)];
  }

  // Without the units that the fit does not need after all: the last unit's backward comes first,
  // while everything is still saved, and brings back what that unit dropped. They are few: looked
  // for from the end on.
  template <class MayFit, class Fits>
  static Prefixes Trimmed(Prefixes p, MayFit&& may_fit, Fits&& fits) {
    for (size_t k = 0; k < p.cheap.size(); ++k) {
      std::vector<Prefixes> steps;  // from none of the kind to as many as there are
      for (int64_t n = 0; n <= p.cheap[k]; ++n) {
        steps.push_back(p);
        steps.back().cheap[k] = n;
      }
      if (fits(steps.front())) {
        p = steps.front();
        continue;
      }
      size_t low = 0, high = steps.size() - 1;
      for (size_t fewer = 1; low == 0 && fewer < steps.size() - 1; fewer *= 2)
        (may_fit(steps[steps.size() - 1 - fewer]) ? high : low) = steps.size() - 1 - fewer;
      p = FirstFitting(steps, low, high, may_fit, fits);
    }
    return p;
  }

  RecomputeChoice Chosen(const Prefixes& p) {
    // Nothing recomputed may be nothing planned yet.
    const int64_t saved = p == Prefix(0, 0) ? 0 : Arena(Prefix(0, 0)) - Arena(p);
    return {UnitsOf(p), CountsOf(in_.forward, UnitsOf(p)), true, saved, {}};
  }

  const RecomputeInput& in_;
  PlanOptions options_;
  Machine machine_;
  std::vector<const NodeDef*> kinds_;
  std::vector<size_t> blocks_;  // UnitIds of block units, in order of the forward
  std::map<Prefixes, int64_t> bounds_;
  std::map<Prefixes, int64_t> arenas_;
};

}  // namespace

Machine MachineOfChoices(Backend backend, int world) {
  Machine machine = ShareOf(FindMachine(backend == Backend::kCuda ? "h100" : "cpu"), world);
  machine.ranks_per_host = 0;  // a plan depends on no rate that somebody may state
  return machine;
}

RecomputeChoice GivenRecompute(const SemanticGraph& forward, Recompute policy) {
  const std::vector<UnitRecompute> units = RecomputeOf(forward, policy);
  return {units, CountsOf(forward, units), false, 0, {}};
}

RecomputeChoice ChooseRecompute(const RecomputeInput& input) { return Search(input).Run(); }

std::string ToString(const RecomputeCounts& counts) {
  std::string kinds;
  const auto add = [&](const std::string& name, int64_t units) {
    if (units > 0) kinds += fmt::format("{}{} in {}", kinds.empty() ? "" : ", ", name, units);
  };
  for (const auto& [kind, units] : counts.cheap) add(kind + "s", units);
  add("everything", counts.everything);
  return kinds.empty() ? "nothing" : fmt::format("{} of {} block units", kinds, counts.blocks);
}

}  // namespace millrace
