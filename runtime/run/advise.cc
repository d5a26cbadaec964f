#include "runtime/run/advise.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/config/validate.h"
#include "runtime/plan/cost/cost_model.h"
#include "runtime/plan/cost/program_floor.h"

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
    {"parallel.context", &ParallelConfig::context, false},
    {"parallel.expert", &ParallelConfig::expert, true},
    {"parallel.tensor", &ParallelConfig::tensor, false},
};

// Each of these does no less than the one before.
constexpr std::array kReshards = {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward};
constexpr std::array kRecomputes = {Recompute::kNone, Recompute::kNorms, Recompute::kBlock};
constexpr std::array<int64_t, 2> kPrefetches = {1, 2};

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) divisors.push_back(d);
  return divisors;
}

// Whether weights are sharded: over shard and context, and what expert and tensor do not split over
// these.
bool Gathers(const Config& config) {
  return config.parallel.shard.value_or(1) * config.parallel.OtherAxes() > 1;
}

// Whether ranks exchange what a plan may keep for the backward.
bool MayKeepExchanges(const Config& config) {
  return config.parallel.tensor > 1 || config.parallel.context > 1;
}

// How much is known of a candidate: the more, the longer it took, and the nearer `seconds` is.
enum class Stage {
  kNamed,    // what one that does less takes
  kFloored,  // and its floor (FloorOf)
  kDrafted,  // and its draft, without edges
};

struct Candidate {
  Config config;
  int64_t state_bytes = 0;  // of weights and moments
  Stage stage = Stage::kNamed;
  double seconds = 0;            // that a step takes at least
  int64_t limit = 0, bound = 0;  // bytes: allowed, and below which no arena of this plan is
};

class Search {
 public:
  explicit Search(const AdviseInput& input) : in_(input) {}

  Advice Run() {
    // Sequences of a step are what the given configuration reads, whatever the axes.
    sequences_ = in_.config.train.GlobalBatch(in_.config.parallel.DataRanks(in_.world));
    advice_.tokens_per_step = sequences_ * in_.config.model.seq_len;
    DivideWorld(in_.config, 0, in_.world, in_.world);
    while (!queue_.empty()) {
      if (advice_.best.size() == in_.most && queue_.begin()->seconds >= advice_.best.back().seconds)
        break;
      Look(std::move(queue_.extract(queue_.begin()).value()));
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
    Candidate candidate{config};
    candidate.config.train.global_batch.reset();
    for (const int64_t micro : Divisors(sequences_of_rank)) {
      Config& with = candidate.config;
      with.train.micro_batch = micro;
      with.train.accumulate = sequences_of_rank / micro;
      if (!CanBePlanned(with)) continue;
      if (candidate.state_bytes == 0) candidate.state_bytes = StateBytes(with);
      with.sharding.reshard = kReshards.front();
      with.memory.recompute = kRecomputes.front();
      advice_.considered +=
          static_cast<int>((Gathers(with) ? kReshards.size() : 1) * kRecomputes.size());
      queue_.insert(candidate);
    }
  }

  // As `train` would say: not every size divides every model and every sequence.
  bool CanBePlanned(const Config& config) const {
    const ConfigContext context{.world = in_.world, .has_cuda = true, .needs_data = false};
    return Validate(config, context).empty();
  }

  int64_t StateBytes(const Config& config) const {
    const ShardLayout layout = PlanShards(MakeModel(ModelOptionsOf(config))->spec(),
                                          MeshOf(config, in_.world), PrecisionOf(config));
    int64_t bytes = 0;
    for (const FlatParam& flat : layout.flats)
      bytes += flat.shard_numel * (Bytes(DType::kF32) + 2 * Bytes(layout.precision.moments));
    return bytes;
  }

  // One stage further.
  void Look(Candidate candidate) {
    switch (candidate.stage) {
      case Stage::kNamed:
        return Floor(std::move(candidate));
      case Stage::kFloored:
        return Draft(std::move(candidate));
      case Stage::kDrafted:
        return Plan(candidate);
    }
  }

  // The same with the next of `policies`, which does more and so takes as long at least.
  template <class Policy, size_t kCount>
  void TryNext(const Candidate& candidate, const std::array<Policy, kCount>& policies,
               Policy& (*of)(Config&)) {
    Candidate next = candidate;
    Policy& policy = of(next.config);
    const auto at = std::find(policies.begin(), policies.end(), policy) + 1;
    if (at == policies.end()) return;
    policy = *at;
    queue_.insert(std::move(next));
  }

  void Floor(Candidate candidate) {
    const AdviseTarget target = in_.target(candidate.config);
    const std::string why = WhyNoFloat8Rows(candidate.config, target.traits.backend);
    MR_REQUIRE(ErrorCode::kConfig, why.empty() || candidate.config.parallel.context > 1, "{}", why);
    if (!why.empty()) return;
    const ProgramFloor& floor = FloorOfProgram(candidate.config, target);
    candidate.seconds = std::max(candidate.seconds, floor.seconds);
    TryNext<Recompute>(candidate, kRecomputes,
                       [](Config& config) -> Recompute& { return config.memory.recompute; });
    candidate.limit = LimitOf(candidate.config, target);
    candidate.bound = candidate.state_bytes + floor.activation_bytes;
    candidate.stage = Stage::kFloored;
    if (!Fits(candidate))
      too_large_.push_back(std::move(candidate));
    else
      queue_.insert(std::move(candidate));
  }

  // Of what a rank computes: shard and replicate do not matter to it.
  const ProgramFloor& FloorOfProgram(const Config& config, const AdviseTarget& target) {
    const ParallelConfig& parallel = config.parallel;
    const auto [known, isNew] = floors_.try_emplace(
        {parallel.tensor, parallel.context, parallel.expert, config.train.micro_batch,
         static_cast<int64_t>(config.memory.recompute)});
    if (!isNew) return known->second;
    const Machine machine = ShareOf(target.machine, in_.world);
    const PrecisionPolicy precision = PrecisionOf(config);
    const PlanOptions options = PlanOptionsOf(config, in_.world, target.traits);
    const auto floor = [&](Exchanged exchanged) {
      const Program program = LowerTraining(config, in_.world, target.traits, exchanged);
      return FloorOf({program, MeshOf(config, in_.world), machine, options.accumulate,
                      std::min(precision.grad_accumulate, precision.grad_wire,
                               [](DType a, DType b) { return Bytes(a) < Bytes(b); }),
                      options.overlap_weight_gradients});
    };
    known->second = floor(Exchanged::kAgain);
    if (MayKeepExchanges(config)) known->second.seconds = floor(Exchanged::kKept).seconds;
    return known->second;
  }

  static bool Fits(const Candidate& candidate) {
    return candidate.limit <= 0 || candidate.bound <= candidate.limit;
  }

  void KeepClosest(const Candidate& candidate) {
    if (!closest_ || candidate.bound - candidate.limit < closest_->bound - closest_->limit)
      closest_ = candidate;
  }

  // A candidate for a plan in full, if it may fit. With all ways to reshard: what gathers more can
  // be faster once more compute hides it, and what fits as a draft need not fit once it is placed.
  void Draft(Candidate candidate) {
    const Drafted drafted = DraftOf(candidate);
    const Machine machine = ShareOf(in_.target(candidate.config).machine, in_.world);
    const auto seconds = [&](const Drafted& of) {
      return Simulate(of.plan, of.plan.schedule, of.mesh, machine, in_.join).seconds;
    };
    double least = seconds(drafted);
    if (MayKeepExchanges(candidate.config))
      least = std::min(least, seconds(DraftOf(candidate, Exchanged::kKept)));
    candidate.seconds = std::max(candidate.seconds, least);
    if (Gathers(candidate.config))
      TryNext<Reshard>(candidate, kReshards,
                       [](Config& config) -> Reshard& { return config.sharding.reshard; });
    candidate.bound = drafted.plan.lower_bound;
    candidate.stage = Stage::kDrafted;
    if (!Fits(candidate)) return KeepClosest(candidate);
    for (const int64_t prefetch : kPrefetches) {
      candidate.config.memory.prefetch = prefetch;
      const bool deeper = prefetch > kPrefetches.front();
      // Depth is for gathers within a step, and slots that are given allow what they allow.
      if (deeper &&
          (candidate.config.sharding.reshard == Reshard::kNever || candidate.config.memory.slots))
        break;
      queue_.insert(candidate);
    }
  }

  Drafted DraftOf(const Candidate& candidate, Exchanged exchanged = Exchanged::kAgain) {
    advice_.drafted += exchanged == Exchanged::kAgain;
    return DraftTraining(candidate.config, in_.world, in_.target(candidate.config).traits,
                         exchanged);
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
    AssembledRun run = Assemble(config, in_.world, target.traits, {"train"});
    ++advice_.planned;
    Candidate placed = candidate;
    placed.bound = run.plans.Of("train").arena_bytes;
    if (!Fits(placed)) return KeepClosest(placed);
    // It fits, and fills the budget with what exchanges bring.
    if (candidate.config.memory.budget_gib && MayKeepExchanges(config))
      run = Assemble(candidate.config, in_.world, target.traits, {"train"});
    const StepPlan& plan = run.plans.Of("train");
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
    if (std::any_of(advice_.best.begin(), advice_.best.end(),
                    [&](const AdvisedPlan& other) { return IsSameStep(other, advised); }))
      return;
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

  // Two words for one step: `never` and `after_backward` in a step of one microbatch.
  static bool IsSameStep(const AdvisedPlan& a, const AdvisedPlan& b) {
    return std::tie(a.seconds, a.exposed, a.arena_bytes, a.wire_bytes) ==
               std::tie(b.seconds, b.exposed, b.arena_bytes, b.wire_bytes) &&
           a.mesh == b.mesh;
  }

  // Of those whose floor is too large, the one with the least draft.
  void DraftClosest() {
    std::sort(too_large_.begin(), too_large_.end(), [](const Candidate& a, const Candidate& b) {
      return a.bound - a.limit < b.bound - b.limit;
    });
    for (Candidate& candidate : too_large_) {
      if (closest_ && candidate.bound - candidate.limit >= closest_->bound - closest_->limit)
        return;
      if (Gathers(candidate.config)) candidate.config.sharding.reshard = kReshards.back();
      candidate.bound = DraftOf(candidate).plan.lower_bound;
      KeepClosest(candidate);
    }
  }

  void RequireAny() {
    if (!advice_.best.empty()) return;
    DraftClosest();
    MR_REQUIRE(ErrorCode::kConfig, closest_.has_value(),
               "{} sequences a step cannot be divided between {} ranks by any choice of axes; "
               "change train.micro_batch, train.accumulate or train.global_batch",
               sequences_, in_.world);
    MR_REQUIRE(ErrorCode::kDoesNotFit, false,
               "nothing fits: the closest of {} plans needs {} bytes per rank, {} are allowed: {}; "
               "fewer sequences a step, more ranks or a larger memory.budget_gib may",
               advice_.considered, closest_->bound, closest_->limit, ChoicesOf(closest_->config));
  }

  const AdviseInput& in_;
  int64_t sequences_ = 0;
  struct Sooner {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return std::tie(a.seconds, a.bound) < std::tie(b.seconds, b.bound);
    }
  };
  std::multiset<Candidate, Sooner> queue_;
  // By tensor, context, expert, micro batch and recompute.
  std::map<std::array<int64_t, 5>, ProgramFloor> floors_;
  std::vector<Candidate> too_large_;  // by their floors
  std::optional<Candidate> closest_;  // of those that do not fit
  Advice advice_;
};

}  // namespace

Advice Advise(const AdviseInput& input) { return Search(input).Run(); }

}  // namespace millrace
