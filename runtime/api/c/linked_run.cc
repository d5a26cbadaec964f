#include "runtime/api/c/linked_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>
#include <optional>

#include "runtime/api/c/agree_on.h"
#include "runtime/api/c/lent_weights.h"
#include "runtime/api/c/meeting_place.h"
#include "runtime/api/c/status.h"
#include "runtime/api/exact_sequences.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/run/generate/inference_plans.h"
#include "runtime/run/huggingface/exchange.h"
#include "runtime/run/one_configuration.h"

namespace millrace {
namespace {

constexpr ErrorCode kNothingWritten[] = {ErrorCode::kConfig, ErrorCode::kData,
                                         ErrorCode::kCheckpoint, ErrorCode::kIo};

// Of the world outside: what a run holds is as it was, or known to be incomplete.
bool IsOutside(ErrorCode code) {
  return std::find(std::begin(kNothingWritten), std::end(kNothingWritten), code) !=
         std::end(kNothingWritten);
}

// What the training loop does about bad numbers, a caller's loop would have to.
void RequireNoGuards(const Config& config) {
  const GuardConfig& guard = config.guard;
  const auto refuse = [](bool asked, const std::string& key, const std::string& allowed) {
    if (asked)
      throw ConfigError(
          fmt::format("{}: only the loop of `millrace train` does that; where another "
                      "program makes the steps, allowed is {}",
                      key, allowed),
          PointerOfKey(key));
  };
  refuse(guard.non_finite != GuardConfig::Policy::kSkip, "guard.non_finite", "skip");
  refuse(guard.loss_spike.has_value(), "guard.loss_spike", "null");
  refuse(guard.replicas_every != 0, "guard.replicas_every", "0");
  refuse(guard.rerun_every != 0, "guard.rerun_every", "0");
  refuse(guard.order_every != 0, "guard.order_every", "0");
  // A batch that had no room would have to be run again.
  refuse(config.model.moe.receive_capacity.has_value(), "model.moe.receive_capacity", "null");
}

PlanSelection PlansFor(const mr_run_options& options) {
  PlanSelection plans = {"train", "eval"};
  if (options.use_inference != 0)
    plans.insert(plans.end(), {"score", "score_likeliest", std::string(kInferencePlans)});
  return plans;
}

LoadedConfig LoadFor(const mr_run_options& options, int world) {
  const ConfigText text{"config", options.config};
  const bool has_cuda = CudaBuiltIn(), has_gpus = has_cuda && VisibleGpus() > 0;
  LoadedConfig loaded = LoadRunConfigTexts({&text, 1}, {.world = world,
                                                        .has_cuda = has_cuda,
                                                        .auto_is_cpu = !has_gpus,
                                                        .auto_is_cuda = has_gpus,
                                                        .caller_steps = true,
                                                        .needs_data = options.use_data != 0});
  RequireNoGuards(loaded.config);
  return loaded;
}

// Ranks that share a host take its GPUs in their order (gpu_choice.h).
void RequireDevice(int device, Backend backend, int world) {
  const bool may_choose = backend == Backend::kCuda && world == 1;
  MR_REQUIRE(
      ErrorCode::kInvalidArgument, device == 0 || may_choose, "options.device is {}; {}", device,
      backend == Backend::kCuda ? "of several ranks each takes the GPU of its place on its host: 0"
                                : "the backend is the CPU, of which there is one: 0");
}

}  // namespace

LinkedRun::LinkedRun(const mr_run_options& options, const std::function<void()>& check)
    : log_(options.log, options.user), host_(MeetOtherRanks(options, check)) {
  const CallbackLog::Call call(log_);
  const DeviceOfThread thread;
  const int world = host_->world_size();
  std::vector<int> everyone(static_cast<size_t>(world));
  std::iota(everyone.begin(), everyone.end(), 0);
  meeting_ = host_->Make(everyone, "program");
  Configure(options, world);
  const Config& config = loaded_.config;
  for (const std::string& note : loaded_.notes) log_.Info(LogScope::kAllRanks, "note: " + note);
  const Mesh mesh = MeshOf(config, world);
  device_ = MakeRankDevice(ChooseBackend(config), *host_, log_, config, mesh,
                           world == 1 ? std::optional<int>(options.device) : std::nullopt);
  if (!device_.notice.empty()) log_.Info(LogScope::kAllRanks, device_.notice);
  Environment& environment = device_.environment;
  environment.log = &log_;
  if (options.on_stall != nullptr)
    environment.on_stall = [stalled = options.on_stall, user = options.user](
                               const std::string& verdict) { stalled(user, verdict.c_str()); };
  session_ = std::make_unique<Session>(
      config, environment,
      SessionParts{.plans = PlansFor(options), .data = options.use_data != 0, .releasable = true});
  if (world == 1) unlike_ = CheckSequencesAlike(config, session_->run().plans);
  if (!unlike_.empty()) log_.Warning(LogScope::kAllRanks, unlike_);
  if (options.use_inference != 0)
    generates_ = std::make_unique<EngineTokenModel>(session_->engine(), config);
  layout_ = {mesh.data_ranks(), config.train.micro_batch, session_->run().options.accumulate};
  row_tokens_ = config.model.seq_len + 1;
}

LinkedRun::~LinkedRun() {
  mr_status_free(Guarded([&] { AwaitReaders(); }));  // a device that fails reads nothing more
}

// Before weights are written, and before their memory goes.
void LinkedRun::AwaitReaders() {
  if (may_be_read_.exchange(false)) WaitForAllOf(session_->device());
}

// The configuration, and that all ranks have the same: one that is alone with its mistakes ends
// all.
void LinkedRun::Configure(const mr_run_options& options, int world) {
  OwnConfiguration own;
  std::exception_ptr mistake;
  try {
    loaded_ = LoadFor(options, world);
    config_text_ = ConfigToJson(loaded_.config);
    log_.ShowFrom(loaded_.config.run.log_level);
    const Backend backend = ChooseBackend(loaded_.config);
    RequireDevice(options.device, backend, world);
    if (world > 1)
      unlike_ = CheckSequencesAlike(
          loaded_.config,
          Assemble(loaded_.config, world, TraitsOf(backend, world), PlansFor(options)).plans);
    own = {"", config_text_, backend};
  } catch (const Error& error) {
    own.mistakes = error.what();
    mistake = std::current_exception();
  }
  if (world == 1 && mistake) std::rethrow_exception(mistake);
  try {
    RequireOneConfiguration(*meeting_, own);
  } catch (const Error& error) {
    // Its own words know the key.
    if (mistake && error.code() == ErrorCode::kConfig) std::rethrow_exception(mistake);
    throw;
  }
}

void LinkedRun::RequireUsable() const {
  if (!failed_.empty())
    throw CallError(MR_RUN_FAILED,
                    "an earlier call has failed, and left the run unusable: " + failed_);
}

void LinkedRun::RequireWeights() const {
  RequireUsable();
  if (!has_weights_)
    throw CallError(MR_INVALID_ARGUMENT,
                    "the run has no weights yet: mr_init, mr_load or mr_import sets them");
}

void LinkedRun::RequireNothingLent() const {
  if (const int64_t lent = lent_; lent > 0)
    throw CallError(MR_BORROWED,
                    fmt::format("this call would write weights, of which {} {} lent: call the "
                                "deleter of each first",
                                lent, lent == 1 ? "tensor is" : "tensors are"));
}

// All ranks go on, or none does. A rank that is unusable has nobody left to ask.
void LinkedRun::Agree(const std::string& call, const std::function<void()>& check) {
  if (meeting_->world_size() == 1 || !failed_.empty()) return check();
  AgreeOn(*meeting_, call, check, [&](const auto& talk) { Touch(talk); });
}

// What may leave the run unusable.
void LinkedRun::Touch(const std::function<void()>& work) {
  const auto fail = [&](const char* what) {
    failed_ = what;
    if (meeting_->world_size() > 1)
      meeting_->Abort(fmt::format("rank {} has failed: {}", meeting_->rank(), what));
  };
  try {
    work();
  } catch (const CallError&) {  // of a callback between two steps: nothing was left half done
    throw;
  } catch (const Error& error) {
    if (!IsOutside(error.code())) fail(error.what());
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
}

const std::vector<HuggingFaceTensor>& LinkedRun::named_weights() {
  if (named_.empty()) named_ = NamedWeights(session_->run().spec);
  return named_;
}

mr_info LinkedRun::Info() {
  mr_info info{};
  info.parameters = Parameters(session_->run().spec);
  info.step = step_;
  info.arena_bytes = session_->engine().arena_bytes();
  info.weight_version = has_weights_ ? version_ : 0;
  info.vocab = loaded_.config.model.Vocab();
  info.seq_len = loaded_.config.model.seq_len;
  info.step_sequences = layout_.micro_batch * layout_.accumulate;
  info.eval_sequences = layout_.micro_batch;
  info.rank = meeting_->rank();
  info.world = meeting_->world_size();
  info.lent = lent_;
  if (const ReleasedArena* released = session_->engine().released())
    info.released_bytes = released->bytes();
  return info;
}

}  // namespace millrace
