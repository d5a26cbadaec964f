#include "runtime/plan/schedule/recompute.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/plan/cost/timeline.h"

namespace millrace {
namespace {

// In the first so many block units.
struct Prefixes {
  int64_t activations = 0, norms = 0, everything = 0;
  auto operator<=>(const Prefixes&) const = default;
};

RecomputeCounts CountsOf(const SemanticGraph& graph, const std::vector<UnitRecompute>& units) {
  RecomputeCounts counts;
  for (size_t u = 0; u < units.size(); ++u) {
    if (!graph.IsBlock(u)) continue;
    ++counts.blocks;
    counts.activations += units[u].activations;
    counts.norms += units[u].norms;
    counts.everything += units[u].others;
  }
  return counts;
}

class Search {
 public:
  explicit Search(const RecomputeInput& input)
      : in_(input),
        options_(input.options),
        machine_(ShareOf(FindMachine(input.options.backend == Backend::kCuda ? "h100" : "cpu"),
                         input.layout.mesh.world())) {
    machine_.ranks_per_host = 0;  // a plan depends on no rate that somebody may state
    options_.budget_bytes = 0;
    if (options_.reshard == Reshard::kAuto) options_.reshard = Reshard::kAfterForward;
    for (size_t u = 0; u < in_.forward.unit_names.size(); ++u)
      if (in_.forward.IsBlock(u)) blocks_.push_back(u);
  }

  RecomputeChoice Run() {
    const int64_t limit = in_.options.budget_bytes > 0 ? in_.options.budget_bytes
                                                       : std::max<int64_t>(in_.device_bytes, 0);
    const int64_t all = static_cast<int64_t>(blocks_.size());
    const Prefixes none, cheap{all, all, 0}, most{all, all, all};
    // An arena is never below its bound, which takes a fraction of the time.
    const auto may_fit = [&](const Prefixes& p) { return limit == 0 || Draft(p).bound <= limit; };
    const auto fits = [&](const Prefixes& p) {
      return may_fit(p) && (limit == 0 || Arena(p) <= limit);
    };
    if (fits(none)) return Chosen(none);
    if (fits(cheap))
      return Chosen(Trimmed(FirstFitting(Undercut(all), may_fit, fits), may_fit, fits));
    if (fits(most)) {
      std::vector<Prefixes> steps;
      for (int64_t n = 0; n <= all; ++n) steps.push_back({all, all, n});
      return Chosen(FirstFitting(steps, may_fit, fits));
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
  struct Drafted {
    int64_t bound = 0;   // on the arena's bytes
    double seconds = 0;  // that the compute stream is busy
  };

  std::vector<UnitRecompute> UnitsOf(const Prefixes& p) const {
    std::vector<UnitRecompute> units(in_.forward.unit_names.size());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      units[blocks_[i]] = {
          .norms = n < p.norms, .activations = n < p.activations, .others = n < p.everything};
    }
    return units;
  }

  Program ProgramOf(const Prefixes& p) const {
    return Lower(AddGradients(in_.forward, UnitsOf(p)), in_.lower);
  }

  const Drafted& Draft(const Prefixes& p) {
    const auto [it, added] = drafted_.try_emplace(p);
    if (added) {
      const StepPlan plan = DraftStep(in_.layout, ProgramOf(p), options_, PlanKind::kTrain);
      it->second = {plan.lower_bound, Simulate(plan, plan.schedule, in_.layout.mesh, machine_)
                                          .busy[static_cast<size_t>(StreamId::kCompute)]};
    }
    return it->second;
  }

  int64_t Arena(const Prefixes& p) {
    const auto [it, added] = arenas_.try_emplace(p);
    if (added)
      it->second = PlanStep(in_.layout, ProgramOf(p), options_, PlanKind::kTrain).arena_bytes;
    return it->second;
  }

  // Of recomputing one kind in the first n block units, by n from 0, as far as units just add up:
  // the bytes of what is dropped, and of the seconds that all units take the same share.
  struct Prefix {
    double seconds = 0;
    int64_t bytes = 0;
  };

  std::vector<Prefix> PrefixesOf(NodeKind kind, int64_t Prefixes::*units, int64_t all) {
    std::vector<int64_t> dropped(in_.forward.unit_names.size());
    for (const Node& node : in_.forward.forward) {
      if (node.kind != kind) continue;
      for (const ValueId id : node.outputs) {
        if (!id) continue;
        const Value& value = in_.forward.value(id);
        int64_t bytes = Bytes(value.dtype);
        for (const int64_t dim : value.dims) bytes *= dim;
        dropped[static_cast<size_t>(node.unit.value)] += bytes;
      }
    }
    std::vector<Prefix> prefixes = {{}};
    for (const size_t u : blocks_) prefixes.push_back({0, prefixes.back().bytes + dropped[u]});
    Prefixes alone;
    alone.*units = all;
    const double seconds = std::max(0.0, Draft(alone).seconds - Draft({}).seconds);
    const auto total = static_cast<double>(std::max<int64_t>(prefixes.back().bytes, 1));
    for (Prefix& prefix : prefixes)
      prefix.seconds = seconds * (static_cast<double>(prefix.bytes) / total);
    return prefixes;
  }

  // Pairs of prefixes from nothing to all, dearer and saving more from one to the next.
  std::vector<Prefixes> Undercut(int64_t all) {
    const std::vector<Prefix> activations =
                                  PrefixesOf(NodeKind::kActivation, &Prefixes::activations, all),
                              norms = PrefixesOf(NodeKind::kNorm, &Prefixes::norms, all);
    struct Pair {
      double seconds = 0;
      int64_t bytes = 0;
      Prefixes prefixes;
    };
    std::vector<Pair> pairs;
    for (int64_t a = 0; a <= all; ++a)
      for (int64_t b = 0; b <= all; ++b)
        pairs.push_back(
            {activations[static_cast<size_t>(a)].seconds + norms[static_cast<size_t>(b)].seconds,
             activations[static_cast<size_t>(a)].bytes + norms[static_cast<size_t>(b)].bytes,
             {a, b, 0}});
    std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
      return std::tuple(x.seconds, -x.bytes, x.prefixes) <
             std::tuple(y.seconds, -y.bytes, y.prefixes);
    });
    std::vector<Prefixes> best = {{}};  // also where something is for nothing
    int64_t bytes = 0;
    for (const Pair& pair : pairs) {
      if (pair.bytes <= bytes) continue;
      bytes = pair.bytes;
      best.push_back(pair.prefixes);
    }
    return best;
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

  // steps.front() does not fit, steps.back() does. The first whose bound allows it, and nearly
  // always that one fits; else the first behind it.
  template <class MayFit, class Fits>
  static Prefixes FirstFitting(const std::vector<Prefixes>& steps, MayFit&& may_fit, Fits&& fits) {
    const size_t last = steps.size() - 1, first = Bisect(steps, 0, last, may_fit);
    return steps[first == last || fits(steps[first]) ? first : Bisect(steps, first, last, fits)];
  }

  // Without the units that the fit does not need after all: the last unit's backward comes first,
  // while everything is still saved, and brings back what that unit dropped.
  template <class MayFit, class Fits>
  static Prefixes Trimmed(Prefixes p, MayFit&& may_fit, Fits&& fits) {
    for (int64_t Prefixes::*kind : {&Prefixes::activations, &Prefixes::norms}) {
      std::vector<Prefixes> steps;  // from none of the kind to as many as there are
      for (int64_t n = 0; n <= p.*kind; ++n) {
        steps.push_back(p);
        steps.back().*kind = n;
      }
      p = fits(steps.front()) ? steps.front() : FirstFitting(steps, may_fit, fits);
    }
    return p;
  }

  RecomputeChoice Chosen(const Prefixes& p) {
    // Nothing recomputed may be nothing planned yet.
    const int64_t saved = p == Prefixes{} ? 0 : Arena({}) - Arena(p);
    return {UnitsOf(p), CountsOf(in_.forward, UnitsOf(p)), true, saved};
  }

  const RecomputeInput& in_;
  PlanOptions options_;
  Machine machine_;
  std::vector<size_t> blocks_;  // UnitIds of block units, in order of the forward
  std::map<Prefixes, Drafted> drafted_;
  std::map<Prefixes, int64_t> arenas_;
};

}  // namespace

RecomputeChoice GivenRecompute(const SemanticGraph& forward, Recompute policy) {
  const std::vector<UnitRecompute> units = RecomputeOf(forward, policy);
  return {units, CountsOf(forward, units), false, 0};
}

RecomputeChoice ChooseRecompute(const RecomputeInput& input) { return Search(input).Run(); }

std::string ToString(const RecomputeCounts& counts) {
  std::string kinds;
  const auto add = [&](const char* name, int64_t units) {
    if (units > 0) kinds += fmt::format("{}{} in {}", kinds.empty() ? "" : ", ", name, units);
  };
  add("activations", counts.activations);
  add("norms", counts.norms);
  add("everything", counts.everything);
  return kinds.empty() ? "nothing" : fmt::format("{} of {} block units", kinds, counts.blocks);
}

}  // namespace millrace
