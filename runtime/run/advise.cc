#include "runtime/run/advise.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/plan/cost/cost_model.h"

namespace millrace {
namespace {

// An axis that is searched; shard takes the ranks that are left. `carries_data`: its ranks read
// sequences of their own. A new axis is a row here.
struct AdvisedAxis {
  const char* key;
  int64_t ParallelConfig::*size;
  bool carries_data;
};
constexpr AdvisedAxis kAdvisedAxes[] = {
    {"parallel.replicate", &ParallelConfig::replicate, true},
    {"parallel.expert", &ParallelConfig::expert, true},
    {"parallel.tensor", &ParallelConfig::tensor, false},
};

constexpr std::array kReshards = {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward};
constexpr std::array kRecomputes = {Recompute::kNone, Recompute::kNorms, Recompute::kBlock};
constexpr std::array<int64_t, 2> kPrefetches = {1, 2};

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) divisors.push_back(d);
  return divisors;
}

// Whether weights are sharded: over shard, and what expert and tensor do not split over these.
bool Gathers(const Config& config) {
  return config.parallel.shard.value_or(1) * config.parallel.expert * config.parallel.tensor > 1;
}

struct Candidate {
  Config config;
  int64_t limit = 0, bound = 0;  // bytes: allowed, and below which no arena of this plan is
  double seconds = 0;            // of the draft
};

class Search {
 public:
  explicit Search(const AdviseInput& input) : in_(input) {}

  Advice Run() {
    // Sequences of a step are what the given configuration reads, whatever the axes.
    sequences_ = in_.config.train.GlobalBatch(in_.config.parallel.DataRanks(in_.world));
    advice_.tokens_per_step = sequences_ * in_.config.model.seq_len;
    DivideWorld(in_.config, 0, in_.world, in_.world);
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return std::tie(a.seconds, a.bound) < std::tie(b.seconds, b.bound);
    });
    for (const Candidate& candidate : candidates_) {
      if (advice_.best.size() == in_.most && candidate.seconds >= advice_.best.back().seconds)
        break;
      Plan(candidate);
    }
    RequireAny();
    return std::move(advice_);
  }

 private:
  // All sizes of the axes from `axis` on; `left` ranks are not divided yet, `data` read sequences.
  void DivideWorld(const Config& config, size_t axis, int64_t left, int64_t data) {
    if (axis == std::size(kAdvisedAxes)) {
      Config with = config;
      with.parallel.shard = left;
      if (sequences_ % data == 0) TryMicroBatches(with, sequences_ / data);
      return;
    }
    for (const int64_t size : Divisors(left)) {
      Config with = config;
      with.parallel.*kAdvisedAxes[axis].size = size;
      DivideWorld(with, axis + 1, left / size,
                  kAdvisedAxes[axis].carries_data ? data : data / size);
    }
  }

  void TryMicroBatches(const Config& config, int64_t sequences_of_rank) {
    for (const int64_t micro : Divisors(sequences_of_rank)) {
      Config with = config;
      with.train.micro_batch = micro;
      with.train.accumulate = sequences_of_rank / micro;
      with.train.global_batch.reset();
      TryPolicies(with);
    }
  }

  // All of them: to reshard more can be faster (gathers that more compute hides), and what fits
  // as a draft need not fit once it is placed.
  void TryPolicies(const Config& config) {
    const bool gathers = Gathers(config);
    if (!CanBePlanned(config)) return;
    for (const Reshard reshard : kReshards) {
      if (!gathers && reshard != Reshard::kNever) break;
      for (const Recompute recompute : kRecomputes) {
        Config with = config;
        with.sharding.reshard = reshard;
        with.memory.recompute = recompute;
        Draft(with);
      }
    }
  }

  // Not every size divides every model.
  bool CanBePlanned(const Config& config) const {
    try {
      MakeModel(ModelOptionsOf(config));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfig) throw;
      return false;
    }
    return true;
  }

  // A candidate, if it may fit.
  void Draft(const Config& config) {
    const AdviseTarget target = in_.target(config);
    const Drafted drafted = DraftTraining(config, in_.world, target.traits);
    ++advice_.drafted;
    Candidate candidate{config, LimitOf(config, target), drafted.plan.lower_bound};
    if (candidate.limit > 0 && candidate.bound > candidate.limit) {
      if (!closest_ || candidate.bound - candidate.limit < closest_->bound - closest_->limit)
        closest_ = candidate;
      return;
    }
    const Machine machine = ShareOf(target.machine, in_.world);
    candidate.seconds =
        Simulate(drafted.plan, drafted.plan.schedule, drafted.mesh, machine, in_.join).seconds;
    for (const int64_t prefetch : kPrefetches) {
      candidate.config.memory.prefetch = prefetch;
      const bool deeper = prefetch > kPrefetches.front();
      // Depth is for gathers within a step, and slots that are given allow what they allow.
      if (deeper && (config.sharding.reshard == Reshard::kNever || config.memory.slots)) break;
      candidates_.push_back(candidate);
    }
  }

  static int64_t LimitOf(const Config& config, const AdviseTarget& target) {
    const int64_t device = target.traits.device_arena_bytes;
    if (!config.memory.budget_gib) return device;
    const auto budget = static_cast<int64_t>(*config.memory.budget_gib * (int64_t{1} << 30));
    return device > 0 ? std::min(budget, device) : budget;
  }

  void Plan(const Candidate& candidate) {
    const AdviseTarget target = in_.target(candidate.config);
    Config config = candidate.config;
    config.memory.budget_gib.reset();  // what does not fit is passed over here
    const AssembledRun run = Assemble(config, in_.world, target.traits, {"train"});
    ++advice_.planned;
    const StepPlan& plan = run.plans.Of("train");
    if (candidate.limit > 0 && plan.arena_bytes > candidate.limit) {
      if (!closest_ || plan.arena_bytes - candidate.limit < closest_->bound - closest_->limit) {
        closest_ = candidate;
        closest_->bound = plan.arena_bytes;
      }
      return;
    }
    const Machine machine = ShareOf(target.machine, in_.world);
    const Mesh& mesh = run.layout.mesh;
    const Timeline line = Simulate(plan, plan.schedule, mesh, machine, in_.join);
    AdvisedPlan advised{candidate.config,
                        ChoicesOf(candidate.config),
                        mesh,
                        plan.arena_bytes,
                        candidate.limit,
                        CountersOf(plan, plan.schedule, mesh).wire_bytes(),
                        line.seconds,
                        line.exposed_total()};
    const auto place = std::upper_bound(advice_.best.begin(), advice_.best.end(), advised,
                                        [](const AdvisedPlan& a, const AdvisedPlan& b) {
                                          return std::tie(a.seconds, a.arena_bytes) <
                                                 std::tie(b.seconds, b.arena_bytes);
                                        });
    advice_.best.insert(place, std::move(advised));
    if (advice_.best.size() > in_.most) advice_.best.pop_back();
  }

  static std::string ChoicesOf(const Config& config) {
    std::string text;
    for (const AdvisedAxis& axis : kAdvisedAxes)
      text += fmt::format("{}={} ", axis.key, config.parallel.*axis.size);
    text += fmt::format(
        "parallel.shard={} train.micro_batch={} train.accumulate={} memory.recompute={}",
        *config.parallel.shard, config.train.micro_batch, *config.train.accumulate,
        Name(config.memory.recompute));
    if (Gathers(config))  // else keys without effect
      text += fmt::format(" sharding.reshard={} memory.prefetch={}", Name(config.sharding.reshard),
                          config.memory.prefetch);
    return text;
  }

  void RequireAny() const {
    if (!advice_.best.empty()) return;
    MR_REQUIRE(ErrorCode::kConfig, closest_.has_value(),
               "{} sequences a step cannot be divided between {} ranks by any choice of axes; "
               "change train.micro_batch, train.accumulate or train.global_batch",
               sequences_, in_.world);
    MR_REQUIRE(ErrorCode::kDoesNotFit, false,
               "nothing fits: the closest of {} plans needs {} bytes per rank, {} are allowed: {}; "
               "fewer sequences a step, more ranks or a larger memory.budget_gib may",
               advice_.drafted, closest_->bound, closest_->limit, ChoicesOf(closest_->config));
  }

  const AdviseInput& in_;
  int64_t sequences_ = 0;
  std::vector<Candidate> candidates_;
  std::optional<Candidate> closest_;  // of those that do not fit
  Advice advice_;
};

}  // namespace

Advice Advise(const AdviseInput& input) { return Search(input).Run(); }

}  // namespace millrace
