#include "runtime/run/checkpoint/load_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "comm/comm_set.h"
#include "kernels/ops/tuning.h"
#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/checkpoint/checkpoint_reader.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/saved_state.h"
#include "runtime/run/checkpoint/saved_tensors.h"

namespace millrace {
namespace {

using nlohmann::json;
using Changes = std::vector<std::string>;

// Of what decides results, not of the times; "" where nothing is tuned.
std::string TuningHash(const std::string& text, const std::string& origin) {
  if (text.empty()) return "";
  const TuningTable table = TuningTable::FromText(text, origin);
  return table.matmuls.empty() ? "" : table.Hash();
}

void AddOnce(const std::string& change, Changes& changes) {
  if (!change.empty() && std::find(changes.begin(), changes.end(), change) == changes.end())
    changes.push_back(change);
}

// Each rank's shards, as this layout has them.
void LoadShards(Engine& engine, CheckpointReader& reader, const json& counters, Changes& changes) {
  const ShardLayout& layout = engine.layout();
  const int rank = engine.comms().world().rank();
  for (const auto& [slot, id] : SavedSlots(layout)) {
    const FlatParam& flat = layout.flat(id);
    std::vector<float> shard(static_cast<size_t>(flat.shard_numel));
    const int saver = layout.mesh.Group(rank, flat.replicas).front();
    const std::string blob = BlobName(slot.name, flat.name);
    ReadBlob(reader, saver, blob, 0, shard);
    AddOnce(ConversionOf(reader, saver, blob, slot.name, slot.dtype), changes);
    engine.WriteShard(slot.name, id, shard);
  }
  const SavedCounters saved = CountersFrom(counters.at(static_cast<size_t>(rank)));
  engine.SetCounters(saved.counters);
  if (!saved.missing.empty())
    changes.push_back(fmt::format("{} was saved without the counters {}: they begin at zero",
                                  reader.folder(), fmt::join(saved.missing, ", ")));
  if (!saved.unknown.empty())
    changes.push_back(fmt::format("{} has counters that this version does not have: {}",
                                  reader.folder(), fmt::join(saved.unknown, ", ")));
}

// A parameter that was frozen, or had another rule, has no moments that this run's rule could go on
// with. The checkpoint is sound: nobody is to put it aside.
void RequireMoments(const ShardLayout& layout, const SavedTensors& saved,
                    const std::string& folder) {
  for (const ParamPlacement& param : layout.params)
    for (const StateSlot& slot : layout.flat(param.flat).slots())
      MR_REQUIRE(ErrorCode::kConfig, slot == kMasterSlot || !saved.Lacks(slot.name, param.spec),
                 "optimizer: {} is updated by {}, but {} has no {} of it: it was frozen, or had "
                 "another rule; the optimizer.name and optimizer.groups of then are allowed, or a "
                 "run that begins with its weights (millrace export, model.init_from)",
                 param.spec.name, Name(param.spec.update), folder, slot.name);
}

// Whole parameters, from shards of another layout.
void LoadTensors(Engine& engine, CheckpointReader& reader, const json& layout, Changes& changes) {
  SavedTensors saved(reader, layout);
  engine.SetCounters({});
  for (const std::string_view slot : SlotNames(engine.layout()))
    WriteLogicalTensors(engine, slot, [&](const ParamPlacement& param) {
      const DType now = engine.layout().flat(param.flat).DTypeOf(slot);
      AddOnce(saved.Conversion(slot, param.spec, now), changes);
      return saved.Read(slot, param.spec);
    });
  const int64_t now = engine.comms().world().world_size();
  const std::string change = reader.manifest().world == now
                                 ? "with another layout of the same parameters"
                                 : fmt::format("by {}, and now there are {}",
                                               Counted(reader.manifest().world, "rank"), now);
  changes.push_back(
      fmt::format("{} was saved {}: the same values are loaded, counters begin at zero",
                  reader.folder(), change));
}

void CompareTuning(const json& user, const std::string& folder, const RunIdentity& identity,
                   Changes& changes) {
  if (!user.contains("tuning")) return;
  const std::string then = TuningHash(TuningOf(user), folder);
  const std::string now = TuningHash(identity.tuning, "this run's tuning");
  const auto words = [](const std::string& hash) {
    return hash.empty() ? std::string("the library's own choice") : "algorithms " + hash;
  };
  if (then != now)
    changes.push_back(fmt::format("{} was trained with {}, and now there are {}: the bits change",
                                  folder, words(then), words(now)));
}

// Text of one tokenizer's ids is other text to the other, and none to bytes. What was saved with
// bytes says nothing: its ids may be any tokenizer's that the run was not told.
void CompareTokenizer(const json& user, const std::string& folder, const RunIdentity& identity,
                      Changes& changes) {
  const auto saved = user.find("tokenizer");
  if (saved == user.end() || *saved == identity.tokenizer) return;
  changes.push_back(fmt::format(
      "data.tokenizer had the hash {} when {} was saved and {} now: its ids mean something else",
      DumpJson(*saved), folder,
      identity.tokenizer.empty() ? "is bytes" : "has " + identity.tokenizer));
}

// data.`key` in the text of a configuration; null where it has none.
json DataKey(const json& config, const std::string& key) {
  return config.value(json::json_pointer("/data/" + key), json());
}

// Which targets count, and what they are predicted from. What a version without a key saved did as
// the key's default says, which is null or false.
void CompareMasks(const json& user, const std::string& folder, const RunIdentity& identity,
                  Changes& changes) {
  const json saved = user.at("config"), now = ParseJson(identity.config);
  const auto differs = [&](const char* key, const char* then) {
    const json before = DataKey(saved, key), after = DataKey(now, key);
    const auto none = [](const json& value) { return value.is_null() || value == false; };
    if (before == after || (none(before) && none(after))) return;
    changes.push_back(fmt::format("data.{} was {} when {} was saved and is {} now: {}", key,
                                  DumpJson(before), folder, DumpJson(after), then));
  };
  differs("document_mask", "tokens see other tokens, and other targets count");
  if (DataKey(saved, "document_mask") == true && DataKey(now, "document_mask") == true)
    differs("end_of_document", "the documents are others");
  differs("loss_mask", "other targets count");
}

void CompareData(const json& user, const std::string& folder, const RunIdentity& identity,
                 Changes& changes) {
  if (user.at("data_fingerprint") == "")
    return;  // saved without data: an imported model, at its beginning
  const auto differs = [&](const char* what, const json& saved, const json& now) {
    if (saved != now)
      changes.push_back(
          fmt::format("{} was {} when {} was saved and is {} now: the order of the data changes",
                      what, DumpJson(saved), folder, DumpJson(now)));
  };
  differs("the data's fingerprint", user.at("data_fingerprint"), identity.data_fingerprint);
  differs("data.shuffle_seed", user.at("shuffle_seed"), identity.shuffle_seed);
  differs("the global batch", user.at("global_batch"), identity.global_batch);
}

ResumedRun Load(Engine& engine, const std::string& folder, const RunIdentity& identity) {
  CheckpointReader reader(folder);
  ResumedRun resumed;
  resumed.progress.step = reader.manifest().step;
  resumed.path = folder;
  resumed.world = reader.manifest().world;
  // The manifest has sorted the keys; ordered_json would compare their order.
  const json user = ParseJson(reader.manifest().user);
  RequireMoments(engine.layout(), SavedTensors(reader, user.at("layout")), folder);
  if (user.at("layout") == json(LayoutJson(engine.layout())))
    LoadShards(engine, reader, user.at("counters"), resumed.changes);
  else
    LoadTensors(engine, reader, user.at("layout"), resumed.changes);
  StepScalars scalars = engine.ReadScalars();
  scalars.adam_t = user.at("adam_t").get<int64_t>();
  scalars.skipped = user.at("skipped").get<int64_t>();
  const json scaling = user.value("loss_scaling", json::object());  // {}: as at the beginning
  scalars.next_loss_scale = scaling.value("loss_scale", 0.0f);
  scalars.clean_steps = scaling.value("clean_steps", 0);
  scalars.scale_downs = scaling.value("scale_downs", int64_t{0});
  engine.WriteScalars(scalars);
  CompareTuning(user, folder, identity, resumed.changes);
  resumed.progress.samples = user.at("samples").get<int64_t>();
  resumed.progress.state = DumpJson(user.value("state", json::object()));
  resumed.progress.data = DumpJson(user.value("blend_state", json()));
  CompareTokenizer(user, folder, identity, resumed.changes);
  CompareData(user, folder, identity, resumed.changes);
  CompareMasks(user, folder, identity, resumed.changes);
  return resumed;
}

}  // namespace

ResumedRun LoadCheckpoint(Engine& engine, const std::string& folder, const RunIdentity& identity) {
  try {
    return Load(engine, folder, identity);
  } catch (const json::exception& error) {
    // A sealed manifest that lacks something was written by another program, or another version of
    // this one.
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("checkpoint {} is of another version of Millrace: {}", folder, error.what()));
  }
}

std::string TuningOf(const json& user) {
  const auto tuning = user.find("tuning");
  return tuning != user.end() && tuning->is_object() ? DumpJson(*tuning) : std::string();
}

}  // namespace millrace
