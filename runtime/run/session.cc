#include "runtime/run/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/exec/plan_comms.h"
#include "runtime/run/exchange.h"
#include "runtime/run/memory_use.h"
#include "runtime/watch/watchdog.h"

namespace millrace {
namespace {

TokenSourceOptions SourceOptionsOf(const Config& config) {
  TokenSourceOptions options;
  options.kind = config.data.kind;
  options.path = config.data.path.value_or("");
  options.seq_len = config.model.seq_len;
  options.vocab = config.model.Vocab();
  options.seed = static_cast<uint64_t>(config.data.shuffle_seed);
  return options;
}

EngineOptions EngineOptionsOf(const Config& config, const Environment& environment) {
  EngineOptions options;
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

constexpr uint64_t kSamplingStream =
    0x73616d706c65;  // "sample": a stream of its own under the user's seed

// Draws from softmax(logits / temperature) over the top_k likeliest. Ties go to the lower id.
int32_t Sample(const std::vector<float>& logits, const SamplingOptions& sampling, uint64_t index) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (sampling.temperature <= 0) return order.front();
  if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(order.size()))
    order.resize(static_cast<size_t>(sampling.top_k));
  std::vector<double> cumulative;
  double sum = 0;
  for (int32_t id : order) {
    sum += std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) -
                     logits[static_cast<size_t>(order.front())]) /
                    sampling.temperature);
    cumulative.push_back(sum);
  }
  const double u = UnitUniform(PhiloxBlock(sampling.seed, kSamplingStream, index)[0]) * sum;
  const auto it = std::upper_bound(cumulative.begin(), cumulative.end(), u);
  return order[static_cast<size_t>(std::min<std::ptrdiff_t>(
      it - cumulative.begin(), static_cast<std::ptrdiff_t>(order.size()) - 1))];
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
    data_ = OpenDataSplit(SourceOptionsOf(config), config.data.val_path);
    const StepLayout layout{run_.layout.mesh.data_ranks(), config.train.micro_batch,
                            run_.options.accumulate};
    batcher_ = std::make_unique<Batcher>(data_.train,
                                         static_cast<uint64_t>(config.data.shuffle_seed), layout);
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
      run_.layout, run_.plans, EngineOptionsOf(config, environment));
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

const Batcher& Session::batcher() const {
  MR_CHECK(batcher_ != nullptr,
           "batches of a Session that was made without data (SessionParts::data)");
  return *batcher_;
}
const TokenSource& Session::held_out() const {
  MR_CHECK(data_.held_out != nullptr,
           "held-out data of a Session made without data (SessionParts::data)");
  return *data_.held_out;
}
std::string Session::DataDescription() const { return data_.train->Describe(); }
std::string Session::DataFingerprint() const { return data_.train->Fingerprint(); }

double Session::Evaluate() {
  const StepLayout& layout = batcher().layout();
  const int64_t batches = EvalBatches(held_out(), config_.data.eval_batches, layout);
  double sum = 0;
  const PhaseScope phase = Phase(RunPhase::kEvaluating);
  for (int64_t i = 0; i < batches; ++i) {
    if (marks_) marks_->Enter(RunPhase::kEvaluating, i);
    sum += engine_->EvalLossSum(EvalTokens(held_out(), i, data_rank(), layout));
  }
  // Summed in rank order, so that every rank has the same bits.
  double total = 0;
  for (const std::string& part :
       comms_->world().HostAllGather({reinterpret_cast<const char*>(&sum), sizeof sum})) {
    double value = 0;
    MR_CHECK_EQ(part.size(), sizeof value, "evaluation sum of a rank");
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(&value));
    total += value;
  }
  return total /
         static_cast<double>(batches * layout.world * layout.micro_batch * held_out().seq_len());
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
  const PhaseScope phase = Phase(RunPhase::kGenerating);
  for (int64_t i = 0; i < count; ++i) {
    if (marks_) marks_->Enter(RunPhase::kGenerating, i);
    const size_t used = std::min(all.size(), window);
    std::vector<int32_t> tokens(window);
    std::copy(all.end() - static_cast<std::ptrdiff_t>(used), all.end(), tokens.begin());
    const std::vector<float> logits =
        engine_->Logits(tokens, static_cast<int64_t>(used) - 1, config_.model.Vocab());
    all.push_back(Sample(logits, sampling, static_cast<uint64_t>(i)));
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end()};
}

}  // namespace millrace
