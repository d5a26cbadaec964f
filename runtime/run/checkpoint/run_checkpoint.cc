#include "runtime/run/checkpoint/run_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "comm/agree.h"
#include "comm/comm_set.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/hash.h"
#include "runtime/exec/engine.h"
#include "runtime/run/checkpoint/load_checkpoint.h"
#include "runtime/run/checkpoint/saved_state.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// What is different between two models, as Words "name=value name=value ...", for people: "layers=2
// d_model=32" of the first, and "no mtp" where only the other has such a word.
std::string DifferingWords(const std::string& text, const std::string& other) {
  std::istringstream words(text);
  const std::string padded = " " + other + " ";
  std::string different;
  for (std::string word; words >> word;)
    if (padded.find(" " + word + " ") == std::string::npos)
      different += (different.empty() ? "" : " ") + word;
  const std::string named = " " + text;
  words = std::istringstream(other);
  for (std::string word; words >> word;)
    if (const std::string name = word.substr(0, word.find('='));
        named.find(" " + name + "=") == std::string::npos)
      different += fmt::format("{}no {}", different.empty() ? "" : ", ", name);
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

std::string BlendInWords(const nlohmann::json& blend) {
  if (!blend.is_array()) return "one source";
  std::vector<std::string> parts;
  for (const nlohmann::json& source : blend) {
    if (!source.contains("name") || !source.contains("weight") || !source["name"].is_string())
      return DumpJson(blend);  // of another version
    parts.push_back(fmt::format("{} (weight {})", source["name"].get<std::string>(),
                                DumpJson(source["weight"])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Error(kConfig) naming both blends when a run that goes on would draw from others, or draw
// otherwise: its counters mean nothing then.
void RequireSameBlend(const nlohmann::json& saved, const std::string& folder,
                      const RunIdentity& identity) {
  const nlohmann::json now = ParseJson(identity.blend);
  MR_REQUIRE(ErrorCode::kConfig, saved == now,
             "checkpoint {} was trained on {}, and data.sources is {} now: a run goes on with the "
             "sources, the weights and the order that it began with. Give these again, or choose "
             "another run.dir; its weights may begin as this run's (millrace export, "
             "model.init_from)",
             folder, BlendInWords(saved), BlendInWords(now));
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

// Of what a checkpoint was trained on; none of an imported model, which has not been yet.
std::optional<nlohmann::json> BlendOf(const CheckpointManifest& manifest) {
  const nlohmann::json user = ParseJson(manifest.user);
  const auto fingerprint = user.find("data_fingerprint");
  if (fingerprint == user.end() || *fingerprint == "") return std::nullopt;
  const auto blend = user.find("blend");
  return blend != user.end() ? *blend : nlohmann::json();
}

std::string ModelOf(const CheckpointManifest& manifest) {
  const nlohmann::json user = ParseJson(manifest.user);
  const auto model = user.find("model");
  return model != user.end() && model->is_string() ? model->get<std::string>() : std::string();
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

// What rank 0 finds in the run's folder, newest first, on every rank: of each checkpoint its folder
// and what decides whether it may be loaded. None where the policy is to begin anew: then they are
// set aside, and rank 0 has a warning that says so.
Json EntriesForAll(Communicator& world, const std::string& run_dir, ResumePolicy policy,
                   std::vector<std::string>& warnings) {
  Json entries = Json::array();
  OnLeader(world, [&] {
    RemoveLeftovers(CheckpointRoot(run_dir));
    if (policy == ResumePolicy::kNever) {
      if (const auto aside = SetAside(run_dir))
        warnings.push_back(fmt::format(
            "checkpoint.resume is never: the checkpoints of an earlier run are now in {}", *aside));
      return;
    }
    for (const CheckpointEntry& entry : ListCheckpoints(CheckpointRoot(run_dir))) {
      entries.push_back({{"folder", entry.folder},
                         {"problem", entry.problem},
                         {"identity", entry.manifest ? entry.manifest->identity : ""},
                         {"model", entry.manifest ? ModelOf(*entry.manifest) : ""}});
      if (const auto blend = entry.manifest ? BlendOf(*entry.manifest) : std::nullopt)
        entries.back()["blend"] = Json(*blend);
    }
  });
  return ParseOrderedJson(world.HostBroadcast(DumpJson(entries), 0));
}

// What keeps one of these from being loaded; none: it is sound. An error where it belongs to
// another run, before anything is moved: what is wrong may be the configuration.
std::vector<std::string> ProblemsOf(const Json& entry, const std::string& folder,
                                    Communicator& world, const RunIdentity& identity) {
  if (const std::string saved = entry.at("identity"); !saved.empty())
    RequireSameModel(saved, entry.at("model"), folder, identity);
  if (entry.contains("blend"))
    RequireSameBlend(nlohmann::json(entry.at("blend")), folder, identity);
  if (const std::string problem = entry.at("problem"); !problem.empty()) return {problem};
  return VerifyTogether(world, folder);
}

}  // namespace

std::optional<ResumedRun> ResumeRun(Engine& engine, const std::string& run_dir, ResumePolicy policy,
                                    const RunIdentity& identity) {
  Communicator& world = engine.comms().world();
  std::vector<std::string> warnings;
  const Json entries = EntriesForAll(world, run_dir, policy, warnings);
  for (const Json& entry : entries) {
    const std::string folder = entry.at("folder");
    const std::vector<std::string> problems = ProblemsOf(entry, folder, world, identity);
    if (problems.empty()) {
      ResumedRun resumed = LoadCheckpoint(engine, folder, identity);
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

void RequirePlaceFor(const std::string& run_dir, int64_t step, const RunIdentity& identity) {
  const std::vector<CheckpointEntry> entries = ListCheckpoints(CheckpointRoot(run_dir));
  if (entries.empty()) return;
  const auto newest = std::find_if(entries.begin(), entries.end(),
                                   [](const CheckpointEntry& entry) { return entry.usable(); });
  if (newest != entries.end())
    RequireSameModel(newest->manifest->identity, ModelOf(*newest->manifest), newest->folder,
                     identity);
  MR_REQUIRE(
      ErrorCode::kCheckpoint, entries.front().step < step,
      "{} is there, and this run is at step {}: the newest checkpoint of a run is the one of "
      "the greatest step, and others go. Save into another folder, or load that one",
      entries.front().folder, step);
}

CheckpointToUse CheckpointForUse(Engine& engine, const std::string& run_dir,
                                 const std::string& checkpoint, const RunIdentity& identity) {
  Communicator& world = engine.comms().world();
  CheckpointToUse found = {checkpoint, {}};
  if (checkpoint.empty()) {
    Json told;
    OnLeader(world, [&] {
      for (const CheckpointEntry& entry : ListCheckpoints(CheckpointRoot(run_dir))) {
        if (entry.usable()) {
          found.folder = entry.folder;
          break;
        }
        found.warnings.push_back(fmt::format(
            "checkpoint {} is damaged, and an older one is used: {}", entry.folder, entry.problem));
      }
      MR_REQUIRE(ErrorCode::kCheckpoint, !found.folder.empty(),
                 "{} holds no usable checkpoint; train first, or name one with --checkpoint",
                 CheckpointRoot(run_dir));
      told = {{"folder", found.folder}, {"warnings", found.warnings}};
    });
    told = ParseOrderedJson(world.HostBroadcast(DumpJson(told), 0));
    found = {told.at("folder"), told.at("warnings")};
  }
  const std::string& folder = found.folder;
  const std::vector<std::string> problems = VerifyTogether(world, folder);
  std::error_code ignored;
  const bool is_run = std::filesystem::is_directory(CheckpointRoot(folder), ignored);
  MR_REQUIRE(ErrorCode::kCheckpoint, problems.empty(), "checkpoint {} cannot be used: {}{}", folder,
             Summary(problems),
             is_run ? "; this is the folder of a run: name one of its checkpoints" : "");
  const CheckpointManifest manifest = ReadManifest(folder);
  RequireSameModel(manifest.identity, ModelOf(manifest), folder, identity);
  return found;
}

ResumedRun LoadForUse(Engine& engine, const std::string& run_dir, const std::string& checkpoint,
                      const RunIdentity& identity) {
  return LoadVerified(engine, CheckpointForUse(engine, run_dir, checkpoint, identity), identity);
}

ResumedRun LoadRun(Engine& engine, const std::string& checkpoint, const RunIdentity& identity) {
  return LoadForUse(engine, "", checkpoint, identity);
}

ResumedRun LoadVerified(Engine& engine, const CheckpointToUse& checkpoint,
                        const RunIdentity& identity) {
  ResumedRun loaded = LoadCheckpoint(engine, checkpoint.folder, identity);
  loaded.warnings = checkpoint.warnings;
  return loaded;
}

}  // namespace millrace
