#include "runtime/run/checkpoint/run_saver.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "comm/agree.h"
#include "comm/comm_set.h"
#include "runtime/base/json.h"
#include "runtime/data/hash.h"
#include "runtime/exec/engine.h"
#include "runtime/run/checkpoint/saved_state.h"
#include "runtime/run/checkpoint/saved_tensors.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr char kNoPart = '-', kRunning = 'w', kDone = 'd', kFailed = 'f';
constexpr int64_t kWrittenPiece = int64_t{4} << 20;

std::string NewId() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("{:x}-{}", now, getpid());
}

// Calls fn(slot, flat) for what `rank` saves, in the order in which the copies lie.
template <typename F>
void ForEachShard(const ShardLayout& layout, int rank, F&& fn) {
  for (const auto& [slot, flat] : SavedSlots(layout))
    if (Saves(layout, flat, rank)) fn(slot.name, flat);
}

int64_t SavedNumel(const ShardLayout& layout, int rank) {
  int64_t numel = 0;
  ForEachShard(layout, rank,
               [&](std::string_view, FlatId flat) { numel += layout.flat(flat).shard_numel; });
  return numel;
}

}  // namespace

RunSaver::RunSaver(Engine& engine, const std::string& run_dir, RunIdentity identity,
                   SaverOptions options)
    : engine_(engine),
      run_dir_(run_dir),
      identity_(std::move(identity)),
      options_(std::move(options)) {}

RunSaver::~RunSaver() {
  if (in_flight()) job_.Stop(engine_.marks(), place_.step);
}

int RunSaver::rank() const { return engine_.comms().world().rank(); }

// Of the replicas, which hold the same bits, the first.
bool RunSaver::writes() const {
  const std::vector<int> savers = Savers(engine_.layout());
  return std::binary_search(savers.begin(), savers.end(), rank());
}

void RunSaver::Start(Stage stage, BackgroundJob::Work work) {
  stage_ = stage;
  if (beside_)
    job_.Start(std::move(work));
  else
    job_.RunHere(work, engine_.marks(), place_.step);
}

void RunSaver::Begin(const RunProgress& progress, std::optional<double> eval_loss, SaveMode mode) {
  MR_CHECK(!in_flight(), "step {} is saved while step {} is", progress.step, place_.step);
  begun_ = Clock::now();
  beside_ = options_.asynchronous && mode == SaveMode::kAsConfigured;
  Communicator& world = engine_.comms().world();
  const Json mine = {{"id", world.rank() == 0 ? NewId() : ""},
                     {"counters", CountersJson(engine_.counters())}};
  Json counters = Json::array();
  std::string id;
  for (const std::string& text : world.HostAllGather(DumpJson(mine))) {
    const Json theirs = ParseOrderedJson(text);
    counters.push_back(theirs.at("counters"));
    id += theirs.at("id").get<std::string>();
  }
  place_ = {CheckpointRoot(run_dir_), progress.step, id};
  progress_ = progress;
  eval_loss_ = eval_loss;
  counters_ = DumpJson(counters);
  scalars_ = engine_.ReadScalars();
  outcome_ = {.step = progress.step, .folder = "", .ms = 0, .error = {}, .warning = ""};
  thinning_.clear();
  job_.Forget();
  stage_ = Stage::kWriting;
  if (!writes()) return;
  if (beside_) CopyShards();
  Start(Stage::kWriting, [this](JobMarks& marks) { WriteShards(marks); });
}

void RunSaver::CopyShards() {
  if (copy_ == nullptr)
    copy_ = engine_.device().AllocateHost(
        SavedNumel(engine_.layout(), rank()) * static_cast<int64_t>(sizeof(float)),
        "copy of the state for checkpoints");
  auto* to = reinterpret_cast<float*>(copy_->data());
  ForEachShard(engine_.layout(), rank(), [&](std::string_view slot, FlatId flat) {
    const auto numel = static_cast<size_t>(engine_.layout().flat(flat).shard_numel);
    engine_.ReadShard(slot, flat, {to, numel});
    to += numel;
  });
}

void RunSaver::WriteShards(JobMarks& marks) {
  marks.Enter(RunPhase::kSyncing);  // makes the folder, and takes the disk space of the whole file
  PrepareCheckpoint(place_, *options_.files);
  const ShardLayout& layout = engine_.layout();
  std::vector<CheckpointWriter::Blob> blobs;
  ForEachShard(layout, rank(), [&](std::string_view slot, FlatId flat) {
    blobs.push_back({BlobName(slot, layout.flat(flat).name), layout.flat(flat).DTypeOf(slot),
                     layout.flat(flat).shard_numel});
  });
  CheckpointWriter writer(place_, rank(), blobs, *options_.files);
  marks.Enter(RunPhase::kSaving);
  int64_t index = 0;
  const auto* from = beside_ ? copy_->data() : nullptr;
  ForEachShard(layout, rank(), [&](std::string_view slot, FlatId flat) {
    const std::vector<float> shard = beside_ ? std::vector<float>() : engine_.ReadShard(slot, flat);
    const auto* data = beside_ ? from : reinterpret_cast<const std::byte*>(shard.data());
    const int64_t numel = layout.flat(flat).shard_numel;
    auto bytes = numel * static_cast<int64_t>(sizeof(float));
    if (beside_) from += bytes;
    std::vector<BFloat16> narrow;  // exact: it was widened
    if (layout.flat(flat).DTypeOf(slot) == DType::kBF16) {
      narrow.resize(static_cast<size_t>(numel));
      ConvertToBFloat16(reinterpret_cast<const float*>(data), narrow.data(), numel);
      data = reinterpret_cast<const std::byte*>(narrow.data());
      bytes = numel * static_cast<int64_t>(sizeof(BFloat16));
    }
    // In pieces, so that a slow disk shows progress.
    for (int64_t done = 0; done < bytes; done += kWrittenPiece) {
      writer.Write(index, data + done, std::min(kWrittenPiece, bytes - done));
      marks.Tick();
    }
    ++index;
  });
  marks.Enter(RunPhase::kSyncing);
  writer.Finish();
}

std::string RunSaver::ManifestUser() const {
  const bool judged = eval_loss_.has_value() && std::isfinite(*eval_loss_);
  Json user{
      {"model", Words(identity_.model)},
      {"samples", progress_.samples},
      {"adam_t", scalars_.adam_t},
      {"skipped", scalars_.skipped},
      {"eval_loss", judged ? Json(*eval_loss_) : Json(nullptr)},
      {"tuning", identity_.tuning.empty() ? Json(nullptr) : ParseOrderedJson(identity_.tuning)},
      {"data_fingerprint", identity_.data_fingerprint},
      {"shuffle_seed", identity_.shuffle_seed},
      {"global_batch", identity_.global_batch},
      {"blend", ParseOrderedJson(identity_.blend)},
      {"blend_state", ParseOrderedJson(progress_.data)},
      {"counters", ParseOrderedJson(counters_)},
      {"layout", LayoutJson(engine_.layout())},
      {"state", ParseOrderedJson(progress_.state)},
      {"config", ParseOrderedJson(identity_.config)}};
  if (scalars_.next_loss_scale > 0)
    user["loss_scaling"] = {{"loss_scale", scalars_.next_loss_scale},
                            {"clean_steps", scalars_.clean_steps},
                            {"scale_downs", scalars_.scale_downs}};
  if (!identity_.tokenizer.empty()) user["tokenizer"] = identity_.tokenizer;
  return DumpJson(user);
}

void RunSaver::Publish(JobMarks& marks) {
  marks.Enter(RunPhase::kTidying);
  if (options_.before_publishing) options_.before_publishing();
  CheckpointManifest manifest;
  manifest.step = place_.step;
  manifest.world = engine_.comms().world().world_size();
  manifest.identity = Hash128(Identity(identity_.model));
  manifest.user = ManifestUser();
  const std::vector<int> savers = Savers(engine_.layout());
  const std::vector<int64_t> ranks(savers.begin(), savers.end());
  PublishCheckpoint(place_, manifest, ranks, *options_.files);
  // From here on the checkpoint is there, whatever else fails.
  try {
    RemoveLeftovers(place_.root, *options_.files);
    const KeptCheckpoints& keep = options_.keep;
    ThinCheckpoints(
        place_.root,
        {.newest = keep.newest, .every = keep.every, .best = keep.best, .score = EvalLossOf},
        *options_.files);
  } catch (const Error& error) {
    thinning_ = error.what();
  }
}

char RunSaver::Vote() const {
  switch (job_.state()) {
    case BackgroundJob::State::kNone:
      return kNoPart;
    case BackgroundJob::State::kRunning:
      return kRunning;
    case BackgroundJob::State::kDone:
      return kDone;
    case BackgroundJob::State::kFailed:
      return kFailed;
  }
  return kFailed;
}

// The first rank's error becomes everyone's.
void RunSaver::ShareError() {
  std::optional<Error> own;
  if (job_.state() == BackgroundJob::State::kFailed) own = job_.error();
  const std::optional<RankFailure> first = FirstFailure(engine_.comms().world(), own);
  if (!first || outcome_.error) return;
  const bool of_ranks = stage_ == Stage::kWriting;
  outcome_.error = Error(first->error.code(),
                         of_ranks ? fmt::format("rank {}: {}", first->rank, first->error.what())
                                  : std::string(first->error.what()));
}

std::optional<SaveOutcome> RunSaver::Hear(std::string_view votes) {
  if (!in_flight() || votes.find(kRunning) != votes.npos) return std::nullopt;
  const bool leader = engine_.comms().world().rank() == 0;
  if (stage_ != Stage::kAbandoning && votes.find(kFailed) != votes.npos) {
    ShareError();
    job_.Forget();
    stage_ = Stage::kAbandoning;
    if (leader)
      Start(Stage::kAbandoning, [this](JobMarks& marks) {
        marks.Enter(RunPhase::kTidying);
        AbandonCheckpoint(place_, *options_.files);
      });
    return std::nullopt;
  }
  if (stage_ == Stage::kWriting) {
    job_.Forget();
    stage_ = Stage::kPublishing;
    if (leader) Start(Stage::kPublishing, [this](JobMarks& marks) { Publish(marks); });
    return std::nullopt;
  }
  if (leader) {
    outcome_.ms = std::chrono::duration<double, std::milli>(job_.ended() - begun_).count();
    if (!thinning_.empty())
      outcome_.warning = fmt::format("older checkpoints were not removed: {}", thinning_);
  }
  if (!outcome_.error) outcome_.folder = place_.Folder();
  job_.Forget();
  stage_ = Stage::kIdle;
  return std::move(outcome_);
}

std::optional<SaveOutcome> RunSaver::Settle() {
  std::optional<SaveOutcome> outcome;
  while (in_flight() && !outcome) {
    const PhaseScope phase(engine_.marks(), RunPhase::kSaving, place_.step);
    job_.Wait(engine_.marks(), place_.step);
    std::string votes;
    for (const std::string& vote : engine_.comms().world().HostAllGather(std::string(1, Vote())))
      votes += vote;
    outcome = Hear(votes);
  }
  return outcome;
}

SavedRun SaveRun(Engine& engine, const std::string& run_dir, const RunProgress& progress,
                 const RunIdentity& identity, int64_t keep, FileSystem& files) {
  OnLeader(engine.comms().world(), [&] { RequirePlaceFor(run_dir, progress.step, identity); });
  RunSaver saver(
      engine, run_dir, identity,
      {.asynchronous = false, .keep = {.newest = keep}, .files = &files, .before_publishing = {}});
  saver.Begin(progress);
  const std::optional<SaveOutcome> outcome = saver.Settle();
  if (outcome->error) throw Error(*outcome->error);
  return {outcome->folder, outcome->warning};
}

}  // namespace millrace
