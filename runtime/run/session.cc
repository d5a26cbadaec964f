#include "runtime/run/session.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/config/enum_names.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/generate/host_sampler.h"
#include "runtime/run/huggingface/exchange.h"
#include "runtime/run/memory_use.h"
#include "runtime/watch/watchdog.h"

namespace millrace {
namespace {

EngineOptions EngineOptionsOf(const Config& config, const Environment& environment,
                              const SessionParts& parts) {
  EngineOptions options;
  options.releasable = parts.releasable;
  options.graph = config.execution.graph;
  options.checked = config.execution.checked;
  options.adversary_seed = environment.adversary_seed;
  return options;
}

// Whether what gathers parameters can round on the way.
bool GathersRound(const CommSet& comms, const std::vector<CommSpec>& specs) {
  return std::all_of(specs.begin(), specs.end(), [&](const CommSpec& spec) {
    return spec.key.stream != StreamId::kGather || comms.Of(spec.key).RoundsInGathers();
  });
}

// What data files know of a step.
void RequireFromFiles(const Config& config) {
  MR_REQUIRE(ErrorCode::kConfig,
             config.train.loss == TrainConfig::Loss::kCrossEntropy && !config.train.loss_weights,
             "train.loss is {} and train.loss_weights {}: what that needs of each target is in no "
             "data file, and comes from a program that embeds the runtime; here cross_entropy and "
             "false are allowed",
             Name(config.train.loss), config.train.loss_weights);
}

}  // namespace

Session::Session(const Config& config, const Environment& environment, const SessionParts& parts)
    : config_(config),
      device_(environment.device),
      log_(environment.log != nullptr ? environment.log : &NoLog()),
      ranges_(environment.ranges),
      peer_memory_(environment.peer_memory),
      describe_(environment.describe) {
  const int world = environment.comm_factory->world_size();
  run_ = Assemble(config, world, environment.traits, parts.plans);
  if (parts.data) {
    RequireFromFiles(config);
    data_ = OpenRunData(config);
    std::vector<WeightedSource> sources;
    for (const NamedSource& one : data_.train) sources.push_back({one.source, one.weight});
    const StepLayout layout{run_.layout.mesh.data_ranks(), config.train.micro_batch,
                            run_.options.accumulate};
    batcher_ =
        std::make_unique<Batcher>(sources, static_cast<uint64_t>(config.data.shuffle_seed), layout);
  }
  memory_.start = MemoryBytes(*device_);
  const std::vector<const StepPlan*> plans = run_.plans.All();
  comms_ = std::make_unique<CommSet>(*environment.comm_factory, run_.layout.mesh,
                                     environment.sharing, CommSpecsOf(plans));
  memory_.communicators = MemoryBytes(*device_);
  MR_REQUIRE(ErrorCode::kConfig,
             config.sharding.downcast != ShardingConfig::Downcast::kInGather ||
                 GathersRound(*comms_, CommSpecsOf(plans)),
             "sharding.downcast is in_gather, but gathers go over NCCL, which does not round: "
             "allowed are per_gather, after_update and after_gather, or execution.peer_memory=on");
  StartWatchdog(environment);
  const PhaseScope phase = Phase(RunPhase::kSettingUp);
  if (environment.tuner && config.execution.tune) Tune(environment, parts);
  memory_.before_arena = MemoryBytes(*device_);
  engine_ = std::make_unique<Engine>(
      ExecutorContext{environment.device, environment.kernels, comms_.get(), marks_.get(), ranges_},
      run_.layout, run_.plans, EngineOptionsOf(config, environment, parts));
  memory_.ready = MemoryBytes(*device_);
  std::string plan_hashes;
  for (const StepPlan* plan : plans) plan_hashes += PlanHash(*plan) + " ";
  log_->Write(
      LogLevel::kDebug, LogScope::kThisRank,
      fmt::format(
          "ready: plans {}; {} MiB in use, {} before there were communicators, {} before the arena",
          plan_hashes, memory_.ready >> 20, memory_.start >> 20, memory_.before_arena >> 20));
}

Session::~Session() {
  if (marks_) marks_->Enter(RunPhase::kEnding, 0);
}

void Session::Tune(const Environment& environment, const SessionParts& parts) {
  TuningRequest request;
  request.config = &config_;
  request.train = run_.plans.Find("train");
  request.say = [this](const std::string& text) { log_->Warning(LogScope::kThisRank, text); };
  if (rank() == 0 && config_.checkpoint.resume != CheckpointConfig::Resume::kNever)
    request.saved = ReadSavedTuning(config_.run.dir);
  // A model that was imported has not been trained yet.
  request.goes_on = parts.goes_on && request.saved && request.saved->step > 0;
  tuning_ = ChooseTuning(*environment.tuner, request, comms_->world());
}

void Session::StartWatchdog(const Environment& environment) {
  if (config_.execution.watchdog_s == 0 || !environment.on_stall) return;
  PlanNames names{run_.plans.All(), {}};
  for (const LayoutUnit& unit : run_.layout.units) names.units.push_back(unit.name);
  WatchdogOptions options;
  options.limit = std::chrono::seconds(config_.execution.watchdog_s);
  options.on_stall = environment.on_stall;
  options.check_transport = [comms = comms_.get()] { comms->CheckHealth(); };
  marks_ = std::make_unique<ProgressMarks>();
  marks_->Enter(RunPhase::kCaller, 0);
  std::string warning;
  watchdog_ = Watchdog::Start(comms_->world(), config_.run.dir, *marks_, std::move(names), options,
                              warning);
  if (!watchdog_) marks_.reset();
  if (!warning.empty()) log_->Warning(LogScope::kAllRanks, warning);
}

int Session::rank() const { return comms_->world().rank(); }
int Session::data_rank() const { return run_.layout.mesh.Index(rank(), kDataAxes); }
int Session::world() const { return comms_->world().world_size(); }

void Session::InitWeights() {
  const PhaseScope phase = Phase(RunPhase::kInitializing);
  if (config_.model.init_from)
    LoadHuggingFaceWeights(*engine_, run_.spec, config_.model, *config_.model.init_from);
  else
    engine_->InitWeights(static_cast<uint64_t>(config_.train.seed));
}

std::vector<int32_t> Session::Generate(std::span<const int32_t> prompt, int64_t count,
                                       const SamplingOptions& sampling) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, !prompt.empty(),
             "the prompt is empty; generation needs at least one token");
  const auto window = static_cast<size_t>(config_.model.seq_len);
  std::vector<int32_t> all(prompt.begin(), prompt.end());
  for (const int32_t id : all)
    MR_REQUIRE(ErrorCode::kInvalidArgument, id >= 0 && id < config_.model.Vocab(),
               "prompt token {} is outside the vocabulary of {}", id, config_.model.Vocab());
  const Sampling drawn{
      .temperature = static_cast<float>(sampling.temperature),
      .top_k = static_cast<int32_t>(std::min(sampling.top_k, config_.model.Vocab())),
      .seed = sampling.seed};
  const PhaseScope phase = Phase(RunPhase::kGenerating);
  for (int64_t i = 0; i < count; ++i) {
    if (marks_) marks_->Enter(RunPhase::kGenerating, i);
    const size_t used = std::min(all.size(), window);
    std::vector<int32_t> tokens(window);
    std::copy(all.end() - static_cast<std::ptrdiff_t>(used), all.end(), tokens.begin());
    const std::vector<float> logits =
        engine_->Logits(tokens, static_cast<int64_t>(used) - 1, config_.model.Vocab());
    all.push_back(DrawToken(logits, drawn, i).token);
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end()};
}

}  // namespace millrace
