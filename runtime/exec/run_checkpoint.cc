#include "runtime/exec/run_checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/checkpoint_reader.h"
#include "runtime/data/checkpoint_store.h"
#include "runtime/data/checkpoint_writer.h"
#include "runtime/data/hash.h"
#include "runtime/exec/logical_tensors.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<StateKind, const char*> kKinds[] = {
    {StateKind::kMaster, "master"}, {StateKind::kAdamM, "adam_m"}, {StateKind::kAdamV, "adam_v"}};

std::string Root(const std::string& run_dir) { return run_dir + "/checkpoints"; }
std::string BlobName(const char* kind, const std::string& flat) { return fmt::format("{}/{}", kind, flat); }

// Where each parameter lies in the saved shards: all that a reader of another world needs.
Json LayoutJson(const ShardLayout& layout) {
  Json flats = Json::array();
  for (const FlatParam& flat : layout.flats) {
    Json params = Json::array();
    for (const ParamId id : flat.params) {
      const ParamPlacement& param = layout.param(id);
      params.push_back({{"name", param.spec.name}, {"begin", param.begin}, {"numel", param.spec.numel()}});
    }
    flats.push_back({{"name", flat.name}, {"shard_numel", flat.shard_numel}, {"params", params}});
  }
  return {{"shard_world", layout.mesh.shard}, {"replicate", layout.mesh.replicate}, {"flats", flats}};
}

Json CountersJson(const StepCounters& c) {
  return {c.kernels.concatenated_bytes, c.kernels.cast_bytes, c.kernels.copied_bytes, c.comm.all_gathers,
          c.comm.reduce_scatters,       c.comm.all_reduces,   c.comm.gathered_bytes,  c.comm.reduced_bytes,
          c.comm.all_reduced_bytes,     c.graph_launches};
}

StepCounters CountersFrom(const nlohmann::json& j) {
  const auto v = j.get<std::vector<int64_t>>();
  MR_REQUIRE(ErrorCode::kCheckpoint, v.size() == 10,
             "a checkpoint's counters hold {} values; 10 are expected", v.size());
  return {{v[0], v[1], v[2]}, {v[3], v[4], v[5], v[6], v[7], v[8]}, v[9]};
}

// What is different between two identities "name=value name=value ...", for people: "layers=2 d_model=32" of
// the first.
std::string DifferingWords(const std::string& text, const std::string& other) {
  std::istringstream words(text);
  const std::string padded = " " + other + " ";
  std::string different;
  for (std::string word; words >> word;)
    if (padded.find(" " + word + " ") == std::string::npos)
      different += (different.empty() ? "" : " ") + word;
  return different;
}

// Error(kConfig) naming both models when a checkpoint's is not the configuration's.
void RequireSameModel(const std::string& saved_hash, const std::string& saved, const std::string& folder,
                      const RunIdentity& identity) {
  MR_REQUIRE(ErrorCode::kConfig, saved_hash == Hash128(identity.model),
             "checkpoint {} is of another model: it has {}; the configuration has {}. Choose another "
             "run.dir, or the "
             "configuration that it was made with (millrace inspect shows it)",
             folder, DifferingWords(saved, identity.model), DifferingWords(identity.model, saved));
}

// Some of what is wrong, for one line.
std::string Summary(const std::vector<std::string>& problems) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(problems.size(), kShown);
  std::string text = fmt::format(
      "{}", fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  if (shown < problems.size()) text += fmt::format("; and {} more", problems.size() - shown);
  return text;
}

std::string ModelOf(const CheckpointManifest& manifest) {
  return nlohmann::json::parse(manifest.user).value("model", std::string());
}

// Runs `step` on rank 0 and makes its failure everyone's.
void OnLeader(Communicator& world, const std::function<void()>& step) {
  Json outcome = {{"ok", true}};
  if (world.rank() == 0) {
    try {
      step();
    } catch (const Error& error) {
      outcome = {{"ok", false}, {"code", static_cast<int>(error.code())}, {"text", error.what()}};
    }
  }
  const Json heard = Json::parse(world.HostBroadcast(outcome.dump(), 0));
  if (!heard["ok"].get<bool>())
    throw Error(static_cast<ErrorCode>(heard["code"].get<int>()), heard["text"].get<std::string>());
}

// Runs `step` on every rank and makes the first failure everyone's.
void OnAll(Communicator& world, const std::function<void()>& step) {
  Json outcome = {{"ok", true}};
  try {
    step();
  } catch (const Error& error) {
    outcome = {{"ok", false}, {"code", static_cast<int>(error.code())}, {"text", error.what()}};
  }
  const std::vector<std::string> heard = world.HostAllGather(outcome.dump());
  for (size_t r = 0; r < heard.size(); ++r) {
    const Json other = Json::parse(heard[r]);
    if (!other["ok"].get<bool>())
      throw Error(static_cast<ErrorCode>(other["code"].get<int>()),
                  fmt::format("rank {}: {}", r, other["text"].get<std::string>()));
  }
}

std::string NewId(Communicator& world) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return world.HostBroadcast(fmt::format("{:x}-{}", now, getpid()), 0);
}

constexpr int64_t kWrittenPiece = int64_t{4} << 20;

void WriteShards(Engine& engine, const CheckpointPlace& place, int rank, FileSystem& files) {
  const ShardLayout& layout = engine.layout();
  std::vector<CheckpointWriter::Blob> blobs;
  for (const auto& [kind, name] : kKinds)
    for (const FlatParam& flat : layout.flats)
      blobs.push_back({BlobName(name, flat.name), DType::kF32, flat.shard_numel});
  std::optional<CheckpointWriter> writer;
  {
    const PhaseScope phase(engine.marks(), RunPhase::kSyncing,
                           place.step);  // takes the disk space of the whole file
    writer.emplace(place, rank, blobs, files);
  }
  int64_t index = 0;
  for (const auto& [kind, name] : kKinds) {
    for (size_t f = 0; f < layout.flats.size(); ++f) {
      const std::vector<float> shard = engine.ReadShard(kind, FlatId{static_cast<int32_t>(f)});
      const auto bytes = static_cast<int64_t>(shard.size() * sizeof(float));
      // In pieces, so that a slow disk shows progress.
      for (int64_t done = 0; done < bytes; done += kWrittenPiece) {
        writer->Write(index, reinterpret_cast<const char*>(shard.data()) + done,
                      std::min(kWrittenPiece, bytes - done));
        if (engine.marks() != nullptr) engine.marks()->Tick();
      }
      ++index;
    }
  }
  const PhaseScope phase(engine.marks(), RunPhase::kSyncing, place.step);
  writer->Finish();
}

// Logical values [numel] of one parameter from whichever shards hold them.
class SavedTensors {
 public:
  SavedTensors(CheckpointReader& reader, const nlohmann::json& layout) : reader_(reader) {
    for (const nlohmann::json& flat : layout.at("flats"))
      for (const nlohmann::json& param : flat.at("params"))
        places_[param.at("name").get<std::string>()] = {
            flat.at("name").get<std::string>(), flat.at("shard_numel").get<int64_t>(),
            param.at("begin").get<int64_t>(), param.at("numel").get<int64_t>()};
  }

  std::vector<float> Read(const char* kind, const ParamPlacement& param) {
    const auto it = places_.find(param.spec.name);
    MR_REQUIRE(ErrorCode::kCheckpoint, it != places_.end(), "{} holds no parameter {}", reader_.folder(),
               param.spec.name);
    const Place& place = it->second;
    MR_REQUIRE(ErrorCode::kCheckpoint, place.numel == param.spec.numel(),
               "{}: {} has {} elements, the model's has {}", reader_.folder(), param.spec.name, place.numel,
               param.spec.numel());
    std::vector<float> values(static_cast<size_t>(place.numel));
    for (int64_t done = 0; done < place.numel;) {
      const int64_t at = place.begin + done;
      const int64_t rank = at / place.shard_numel, inside = at % place.shard_numel;
      const int64_t n = std::min(place.numel - done, place.shard_numel - inside);
      reader_.Read(rank, BlobName(kind, place.flat), inside * 4, values.data() + done, n * 4);
      done += n;
    }
    return values;
  }

 private:
  struct Place {
    std::string flat;
    int64_t shard_numel = 0, begin = 0, numel = 0;
  };
  CheckpointReader& reader_;
  std::map<std::string, Place> places_;
};

// Loads a verified checkpoint, with what is worth saying.
ResumedRun LoadVerified(Engine& engine, const std::string& folder, const RunIdentity& identity) {
  CheckpointReader reader(folder);
  ResumedRun resumed{{reader.manifest().step, 0}, folder, {}, {}};
  std::vector<std::string>& changes = resumed.changes;
  // The manifest has sorted the keys; ordered_json would compare their order.
  const nlohmann::json user = nlohmann::json::parse(reader.manifest().user);
  const ShardLayout& layout = engine.layout();
  const bool same = user.at("layout") == nlohmann::json(LayoutJson(layout));
  if (same) {
    const int shard_rank = engine.comms().shard_gather().rank();
    for (const auto& [kind, name] : kKinds) {
      for (size_t f = 0; f < layout.flats.size(); ++f) {
        std::vector<float> shard(static_cast<size_t>(layout.flats[f].shard_numel));
        reader.Read(shard_rank, BlobName(name, layout.flats[f].name), 0, shard.data(),
                    static_cast<int64_t>(shard.size() * sizeof(float)));
        engine.WriteShard(kind, FlatId{static_cast<int32_t>(f)}, shard);
      }
    }
    const nlohmann::json& counters = user.at("counters");
    engine.SetCounters(CountersFrom(counters.at(static_cast<size_t>(engine.comms().world().rank()))));
  } else {
    SavedTensors saved(reader, user.at("layout"));
    for (const auto& [kind, name] : kKinds)
      WriteLogicalTensors(engine, kind,
                          [&, n = name](const ParamPlacement& param) { return saved.Read(n, param); });
    const int64_t now = engine.comms().world().world_size();
    const std::string change =
        reader.manifest().world == now
            ? "with another layout of the same parameters"
            : fmt::format("by {} ranks, and now there are {}", reader.manifest().world, now);
    changes.push_back(
        fmt::format("{} was saved {}: the same values are loaded, counters begin at zero", folder, change));
  }
  StepScalars scalars = engine.ReadScalars();
  scalars.adam_t = user.at("adam_t").get<int64_t>();
  scalars.skipped = user.at("skipped").get<int64_t>();
  engine.WriteScalars(scalars);
  resumed.progress.samples = user.at("samples").get<int64_t>();
  if (user.at("data_fingerprint") == "")
    return resumed;  // saved without data: an imported model, at its beginning
  const auto differs = [&](const char* what, const nlohmann::json& saved, const nlohmann::json& now) {
    if (saved != now)
      changes.push_back(
          fmt::format("{} was {} when {} was saved and is {} now: the order of the data changes", what,
                      saved.dump(), folder, now.dump()));
  };
  differs("the data's fingerprint", user.at("data_fingerprint"), identity.data_fingerprint);
  differs("data.shuffle_seed", user.at("shuffle_seed"), identity.shuffle_seed);
  differs("the global batch", user.at("global_batch"), identity.global_batch);
  return resumed;
}

// A sealed manifest that lacks something was written by another program, or another version of this one.
ResumedRun LoadInto(Engine& engine, const std::string& folder, const RunIdentity& identity) {
  try {
    return LoadVerified(engine, folder, identity);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint,
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
  for (const std::string& theirs : world.HostAllGather(Json(mine).dump()))
    for (const Json& problem : Json::parse(theirs))
      if (std::find(all.begin(), all.end(), problem.get<std::string>()) == all.end())
        all.push_back(problem.get<std::string>());
  return all;
}

// Moves the checkpoints of an earlier run out of the way, so that a run that begins anew loses nothing of it.
std::optional<std::string> SetAside(const std::string& run_dir) {
  const std::string root = Root(run_dir);
  if (ListCheckpoints(root).empty()) return std::nullopt;
  for (int n = 1;; ++n) {
    const std::string aside = fmt::format("{}.old-{}", root, n);
    if (std::filesystem::exists(aside)) continue;
    Rename(FileSystem::Posix(), root, aside);
    return aside;
  }
}

}  // namespace

std::string SaveRun(Engine& engine, const std::string& run_dir, const RunProgress& progress,
                    const RunIdentity& identity, int64_t keep, FileSystem& files) {
  Communicator& world = engine.comms().world();
  const CheckpointPlace place{Root(run_dir), progress.step, NewId(world)};
  const int writers = engine.layout().mesh.shard;  // replica 0; the others hold the same bits
  const StepScalars scalars = engine.ReadScalars();
  Json counters = Json::array();
  for (const std::string& text : world.HostAllGather(CountersJson(engine.counters()).dump()))
    counters.push_back(Json::parse(text));
  try {
    OnLeader(world, [&] { PrepareCheckpoint(place, files); });
    OnAll(world, [&] {
      if (world.rank() < writers) WriteShards(engine, place, world.rank(), files);
    });
    OnLeader(world, [&] {
      const PhaseScope phase(engine.marks(), RunPhase::kTidying, progress.step);
      CheckpointManifest manifest;
      manifest.step = progress.step;
      manifest.world = world.world_size();
      manifest.identity = Hash128(identity.model);
      manifest.user = Json{{"model", identity.model},
                           {"samples", progress.samples},
                           {"adam_t", scalars.adam_t},
                           {"skipped", scalars.skipped},
                           {"data_fingerprint", identity.data_fingerprint},
                           {"shuffle_seed", identity.shuffle_seed},
                           {"global_batch", identity.global_batch},
                           {"counters", counters},
                           {"layout", LayoutJson(engine.layout())},
                           {"config", Json::parse(identity.config)}}
                          .dump();
      std::vector<int64_t> ranks;
      for (int r = 0; r < writers; ++r) ranks.push_back(r);
      PublishCheckpoint(place, manifest, ranks, files);
      KeepNewest(place.root, keep);
    });
  } catch (const Error&) {
    if (world.rank() == 0) AbandonCheckpoint(place, files);
    throw;
  }
  return place.Folder();
}

std::optional<ResumedRun> ResumeRun(Engine& engine, const std::string& run_dir, ResumePolicy policy,
                                    const RunIdentity& identity) {
  Communicator& world = engine.comms().world();
  std::vector<std::string> warnings;
  Json entries = Json::array();
  OnLeader(world, [&] {
    RemoveLeftovers(Root(run_dir));
    if (policy == ResumePolicy::kNever) {
      if (const auto aside = SetAside(run_dir))
        warnings.push_back(fmt::format(
            "checkpoint.resume is never: the checkpoints of an earlier run are now in {}", *aside));
      return;
    }
    for (const CheckpointEntry& entry : ListCheckpoints(Root(run_dir)))
      entries.push_back({{"folder", entry.folder},
                         {"problem", entry.problem},
                         {"identity", entry.manifest ? entry.manifest->identity : ""},
                         {"model", entry.manifest ? ModelOf(*entry.manifest) : ""}});
  });
  entries = Json::parse(world.HostBroadcast(entries.dump(), 0));
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
    MR_REQUIRE(ErrorCode::kCheckpoint, policy == ResumePolicy::kAuto, "checkpoint {} is damaged: {}", folder,
               Summary(problems));
    std::string moved = folder;
    OnLeader(world, [&] { moved = QuarantineCheckpoint(folder); });
    warnings.push_back(
        fmt::format("checkpoint {} is damaged and was moved to {}: {}", folder, moved, Summary(problems)));
  }
  MR_REQUIRE(ErrorCode::kCheckpoint, policy != ResumePolicy::kMust,
             "checkpoint.resume is must, but {} holds no valid checkpoint", Root(run_dir));
  if (!entries.empty())
    warnings.push_back(
        fmt::format("{} holds no sound checkpoint any more: training begins anew", Root(run_dir)));
  // Only rank 0 knows whether something was set aside; every rank returns the same.
  if (!Json::parse(world.HostBroadcast(Json(!warnings.empty()).dump(), 0)).get<bool>()) return std::nullopt;
  return ResumedRun{{}, "", warnings, {}};
}

ResumedRun LoadForUse(Engine& engine, const std::string& run_dir, const std::string& checkpoint,
                      const RunIdentity& identity) {
  std::string folder = checkpoint;
  if (folder.empty()) {
    Communicator& world = engine.comms().world();
    OnLeader(world, [&] {
      for (const CheckpointEntry& entry : ListCheckpoints(Root(run_dir))) {
        if (!entry.usable()) continue;
        folder = entry.folder;
        return;
      }
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{} holds no usable checkpoint; train first, or name one with --checkpoint",
                              Root(run_dir)));
    });
    folder = world.HostBroadcast(folder, 0);
  }
  return LoadRun(engine, folder, identity);
}

ResumedRun LoadRun(Engine& engine, const std::string& checkpoint, const RunIdentity& identity) {
  const std::vector<std::string> problems = VerifyTogether(engine.comms().world(), checkpoint);
  MR_REQUIRE(ErrorCode::kCheckpoint, problems.empty(), "checkpoint {} cannot be used: {}", checkpoint,
             Summary(problems));
  const CheckpointManifest manifest = ReadManifest(checkpoint);
  RequireSameModel(manifest.identity, ModelOf(manifest), checkpoint, identity);
  return LoadInto(engine, checkpoint, identity);
}

}  // namespace millrace
