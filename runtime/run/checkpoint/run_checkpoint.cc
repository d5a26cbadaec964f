#include "runtime/run/checkpoint/run_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "comm/agree.h"
#include "kernels/ops/tuning.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/checkpoint_reader.h"
#include "runtime/data/checkpoint_store.h"
#include "runtime/data/hash.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/saved_state.h"
#include "runtime/run/checkpoint/saved_tensors.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// What is different between two models, as Words "name=value name=value ...", for people: "layers=2
// d_model=32" of the first.
std::string DifferingWords(const std::string& text, const std::string& other) {
  std::istringstream words(text);
  const std::string padded = " " + other + " ";
  std::string different;
  for (std::string word; words >> word;)
    if (padded.find(" " + word + " ") == std::string::npos)
      different += (different.empty() ? "" : " ") + word;
  return different;
}

// Error(kConfig) naming both models when a checkpoint's is not the configuration's. Programs before
// canonical JSON hashed the words.
void RequireSameModel(const std::string& saved_hash, const std::string& saved,
                      const std::string& folder, const RunIdentity& identity) {
  const std::string words = Words(identity.model);
  MR_REQUIRE(
      ErrorCode::kConfig,
      saved_hash == Hash128(Identity(identity.model)) || saved_hash == Hash128(words),
      "checkpoint {} is of another model: it has {}; the configuration has {}. Choose another "
      "run.dir, or the configuration that it was made with (millrace inspect shows it)",
      folder, DifferingWords(saved, words), DifferingWords(words, saved));
}

// Some of what is wrong, for one line.
std::string Summary(const std::vector<std::string>& problems) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(problems.size(), kShown);
  std::string text = fmt::format(
      "{}",
      fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  if (shown < problems.size()) text += fmt::format("; and {} more", problems.size() - shown);
  return text;
}

std::string ModelOf(const CheckpointManifest& manifest) {
  const nlohmann::json user = ParseJson(manifest.user);
  const auto model = user.find("model");
  return model != user.end() && model->is_string() ? model->get<std::string>() : std::string();
}

std::string TuningOf(const nlohmann::json& user) {
  const auto tuning = user.find("tuning");
  return tuning != user.end() && tuning->is_object() ? DumpJson(*tuning) : std::string();
}

// Of what decides results, not of the times; "" where nothing is tuned.
std::string TuningHash(const std::string& text, const std::string& origin) {
  if (text.empty()) return "";
  const TuningTable table = TuningTable::FromText(text, origin);
  return table.matmuls.empty() ? "" : table.Hash();
}

// Loads a verified checkpoint, with what is worth saying.
ResumedRun LoadVerified(Engine& engine, const std::string& folder, const RunIdentity& identity) {
  CheckpointReader reader(folder);
  ResumedRun resumed;
  resumed.progress.step = reader.manifest().step;
  resumed.path = folder;
  resumed.world = reader.manifest().world;
  std::vector<std::string>& changes = resumed.changes;
  // The manifest has sorted the keys; ordered_json would compare their order.
  const nlohmann::json user = ParseJson(reader.manifest().user);
  const ShardLayout& layout = engine.layout();
  const bool same = user.at("layout") == nlohmann::json(LayoutJson(layout));
  if (same) {
    const int rank = engine.comms().world().rank();
    for (const auto& [slot, id] : SavedSlots(layout)) {
      const FlatParam& flat = layout.flat(id);
      std::vector<float> shard(static_cast<size_t>(flat.shard_numel));
      reader.Read(layout.mesh.Group(rank, flat.replicas).front(), BlobName(slot.name, flat.name), 0,
                  shard.data(), static_cast<int64_t>(shard.size() * sizeof(float)));
      engine.WriteShard(slot.name, id, shard);
    }
    const nlohmann::json& counters = user.at("counters");
    const SavedCounters saved =
        CountersFrom(counters.at(static_cast<size_t>(engine.comms().world().rank())));
    engine.SetCounters(saved.counters);
    if (!saved.missing.empty())
      changes.push_back(fmt::format("{} was saved without the counters {}: they begin at zero",
                                    folder, fmt::join(saved.missing, ", ")));
    if (!saved.unknown.empty())
      changes.push_back(fmt::format("{} has counters that this version does not have: {}", folder,
                                    fmt::join(saved.unknown, ", ")));
  } else {
    SavedTensors saved(reader, user.at("layout"));
    engine.SetCounters({});
    for (const std::string_view slot : SlotNames(layout))
      WriteLogicalTensors(
          engine, slot, [&](const ParamPlacement& param) { return saved.Read(slot, param.spec); });
    const int64_t now = engine.comms().world().world_size();
    const std::string change =
        reader.manifest().world == now
            ? "with another layout of the same parameters"
            : fmt::format("by {} ranks, and now there are {}", reader.manifest().world, now);
    changes.push_back(fmt::format(
        "{} was saved {}: the same values are loaded, counters begin at zero", folder, change));
  }
  StepScalars scalars = engine.ReadScalars();
  scalars.adam_t = user.at("adam_t").get<int64_t>();
  scalars.skipped = user.at("skipped").get<int64_t>();
  engine.WriteScalars(scalars);
  if (user.contains("tuning")) {
    const std::string then = TuningHash(TuningOf(user), folder);
    const std::string now = TuningHash(identity.tuning, "this run's tuning");
    const auto words = [](const std::string& hash) {
      return hash.empty() ? std::string("the library's own choice") : "algorithms " + hash;
    };
    if (then != now)
      changes.push_back(fmt::format("{} was trained with {}, and now there are {}: the bits change",
                                    folder, words(then), words(now)));
  }
  resumed.progress.samples = user.at("samples").get<int64_t>();
  resumed.progress.state = DumpJson(user.value("state", nlohmann::json::object()));
  if (user.at("data_fingerprint") == "")
    return resumed;  // saved without data: an imported model, at its beginning
  const auto differs = [&](const char* what, const nlohmann::json& saved,
                           const nlohmann::json& now) {
    if (saved != now)
      changes.push_back(
          fmt::format("{} was {} when {} was saved and is {} now: the order of the data changes",
                      what, DumpJson(saved), folder, DumpJson(now)));
  };
  differs("the data's fingerprint", user.at("data_fingerprint"), identity.data_fingerprint);
  differs("data.shuffle_seed", user.at("shuffle_seed"), identity.shuffle_seed);
  differs("the global batch", user.at("global_batch"), identity.global_batch);
  return resumed;
}

// A sealed manifest that lacks something was written by another program, or
// another version of this one.
ResumedRun LoadInto(Engine& engine, const std::string& folder, const RunIdentity& identity) {
  try {
    return LoadVerified(engine, folder, identity);
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("checkpoint {} is of another version of Millrace: {}", folder, error.what()));
  }
}

// Problems of a checkpoint, each file read by one rank. Empty: sound.
std::vector<std::string> VerifyTogether(Communicator& world, const std::string& folder) {
  std::vector<std::string> mine;
  try {
    const CheckpointManifest manifest = ReadManifest(folder);
    for (size_t i = 0; i < manifest.files.size(); ++i) {
      if (static_cast<int>(i % static_cast<size_t>(world.world_size())) != world.rank()) continue;
      for (std::string& problem : VerifyCheckpointFile(folder, manifest.files[i]))
        mine.push_back(std::move(problem));
    }
  } catch (const Error& error) {
    mine.push_back(error.what());
  }
  std::vector<std::string> all;
  for (const std::string& theirs : world.HostAllGather(DumpJson(Json(mine))))
    for (const Json& problem : ParseOrderedJson(theirs))
      if (std::find(all.begin(), all.end(), problem.get<std::string>()) == all.end())
        all.push_back(problem.get<std::string>());
  return all;
}

// Error(kIo) on every rank if one of them is not let open the checkpoint's files.
void RequireReadable(Communicator& world, const std::string& folder) {
  for (const std::string& why : world.HostAllGather(WhyUnreadable(folder)))
    MR_REQUIRE(ErrorCode::kIo, why.empty(),
               "checkpoint {} cannot be read ({}); it may be sound, and nothing was moved", folder,
               why);
}

// Moves the checkpoints of an earlier run out of the way, so that a run that begins
// anew loses nothing of it.
std::optional<std::string> SetAside(const std::string& run_dir) {
  const std::string root = CheckpointRoot(run_dir);
  if (ListCheckpoints(root).empty()) return std::nullopt;
  for (int n = 1;; ++n) {
    const std::string aside = fmt::format("{}.old-{}", root, n);
    if (std::filesystem::exists(aside)) continue;
    Rename(FileSystem::Posix(), root, aside);
    return aside;
  }
}

}  // namespace

std::optional<ResumedRun> ResumeRun(Engine& engine, const std::string& run_dir, ResumePolicy policy,
                                    const RunIdentity& identity) {
  Communicator& world = engine.comms().world();
  std::vector<std::string> warnings;
  Json entries = Json::array();
  OnLeader(world, [&] {
    RemoveLeftovers(CheckpointRoot(run_dir));
    if (policy == ResumePolicy::kNever) {
      if (const auto aside = SetAside(run_dir))
        warnings.push_back(fmt::format(
            "checkpoint.resume is never: the checkpoints of an earlier run are now in {}", *aside));
      return;
    }
    for (const CheckpointEntry& entry : ListCheckpoints(CheckpointRoot(run_dir)))
      entries.push_back({{"folder", entry.folder},
                         {"problem", entry.problem},
                         {"identity", entry.manifest ? entry.manifest->identity : ""},
                         {"model", entry.manifest ? ModelOf(*entry.manifest) : ""}});
  });
  entries = ParseOrderedJson(world.HostBroadcast(DumpJson(entries), 0));
  for (const Json& entry : entries) {
    const std::string folder = entry.at("folder");
    // Before anything is moved: what is wrong may be the configuration.
    if (const std::string saved = entry.at("identity"); !saved.empty())
      RequireSameModel(saved, entry.at("model"), folder, identity);
    std::vector<std::string> problems;
    if (const std::string problem = entry.at("problem"); !problem.empty())
      problems.push_back(problem);
    else
      problems = VerifyTogether(world, folder);
    if (problems.empty()) {
      ResumedRun resumed = LoadInto(engine, folder, identity);
      resumed.warnings = warnings;
      return resumed;
    }
    RequireReadable(world, folder);
    MR_REQUIRE(ErrorCode::kCheckpoint, policy == ResumePolicy::kAuto,
               "checkpoint {} is damaged: {}", folder, Summary(problems));
    std::string moved = folder;
    OnLeader(world, [&] { moved = QuarantineCheckpoint(folder); });
    warnings.push_back(fmt::format("checkpoint {} is damaged and was moved to {}: {}", folder,
                                   moved, Summary(problems)));
  }
  MR_REQUIRE(ErrorCode::kCheckpoint, policy != ResumePolicy::kMust,
             "checkpoint.resume is must, but {} holds no valid checkpoint",
             CheckpointRoot(run_dir));
  if (!entries.empty())
    warnings.push_back(fmt::format("{} holds no sound checkpoint any more: training begins anew",
                                   CheckpointRoot(run_dir)));
  // Only rank 0 knows whether something was set aside; every rank returns the same.
  if (!ParseOrderedJson(world.HostBroadcast(DumpJson(Json(!warnings.empty())), 0)).get<bool>())
    return std::nullopt;
  ResumedRun nothing;
  nothing.warnings = warnings;
  return nothing;
}

std::optional<SavedTuning> ReadSavedTuning(const std::string& run_dir) {
  for (const CheckpointEntry& entry : ListCheckpoints(CheckpointRoot(run_dir))) {
    if (!entry.usable()) continue;
    const nlohmann::json user = ParseJson(entry.manifest->user);
    return SavedTuning{entry.folder, entry.manifest->step, user.contains("tuning"), TuningOf(user)};
  }
  return std::nullopt;
}

ResumedRun LoadForUse(Engine& engine, const std::string& run_dir, const std::string& checkpoint,
                      const RunIdentity& identity) {
  std::string folder = checkpoint;
  if (folder.empty()) {
    Communicator& world = engine.comms().world();
    OnLeader(world, [&] {
      for (const CheckpointEntry& entry : ListCheckpoints(CheckpointRoot(run_dir))) {
        if (!entry.usable()) continue;
        folder = entry.folder;
        return;
      }
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("{} holds no usable checkpoint; train first, or name one with --checkpoint",
                      CheckpointRoot(run_dir)));
    });
    folder = world.HostBroadcast(folder, 0);
  }
  return LoadRun(engine, folder, identity);
}

ResumedRun LoadRun(Engine& engine, const std::string& checkpoint, const RunIdentity& identity) {
  const std::vector<std::string> problems = VerifyTogether(engine.comms().world(), checkpoint);
  MR_REQUIRE(ErrorCode::kCheckpoint, problems.empty(), "checkpoint {} cannot be used: {}",
             checkpoint, Summary(problems));
  const CheckpointManifest manifest = ReadManifest(checkpoint);
  RequireSameModel(manifest.identity, ModelOf(manifest), checkpoint, identity);
  return LoadInto(engine, checkpoint, identity);
}

}  // namespace millrace
