#include "runtime/run/checkpoint/saved_tensors.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {

using Json = nlohmann::ordered_json;

namespace {

// A layout that no program of ours has written must not lead outside the blobs.
constexpr int64_t kMost = int64_t{1} << 60, kMostRanks = int64_t{1} << 20;

int64_t Within(const nlohmann::json& json, int64_t least, int64_t most, const std::string& where) {
  const auto value = json.get<int64_t>();
  MR_REQUIRE(ErrorCode::kCheckpoint, value >= least && value <= most,
             "{}: {} is no place or size in a checkpoint", where, value);
  return value;
}

Json AxesJson(AxisSet axes) {
  Json names = Json::array();
  for (const Axis axis : kAxes)
    if (axes.Has(axis)) names.push_back(Name(axis));
  return names;
}

AxisSet AxesFrom(const nlohmann::json& names, const std::string& where) {
  AxisSet axes;
  for (const nlohmann::json& name : names) {
    const auto* const axis = std::find_if(
        kAxes.begin(), kAxes.end(), [&](Axis each) { return name == std::string(Name(each)); });
    MR_REQUIRE(ErrorCode::kCheckpoint, axis != kAxes.end(), "{}: there is no axis {}", where,
               DumpJson(name));
    axes = axes | *axis;
  }
  return axes;
}

// How each axis of several ranks is called in the format.
std::string KeyOf(Axis axis) {
  return axis == Axis::kShard ? "shard_world" : std::string(Name(axis));
}

Json ParamJson(const ParamPlacement& param) {
  Json json = {{"name", param.spec.name}, {"begin", param.begin}, {"numel", param.spec.numel()}};
  if (param.dims == param.spec.dims) return json;
  json["dims"] = param.spec.dims;
  json["splits"] = Json::array();
  for (const Split& split : param.spec.splits)
    json["splits"].push_back(
        {{"axes", AxesJson(split.axes)}, {"dim", split.dim}, {"parts", split.parts}});
  return json;
}

ParamSpec SpecFrom(const nlohmann::json& json, const std::string& where) {
  ParamSpec spec;
  spec.name = json.at("name").get<std::string>();
  const int64_t numel = Within(json.at("numel"), 1, kMost, where);
  spec.dims = {numel};
  if (json.contains("dims")) {
    spec.dims.clear();
    int64_t left = numel;
    for (const nlohmann::json& dim : json.at("dims")) {
      spec.dims.push_back(Within(dim, 1, left, where));
      left /= spec.dims.back();
    }
    for (const nlohmann::json& split : json.at("splits"))
      spec.splits.push_back({AxesFrom(split.at("axes"), where), split.at("dim").get<int>(),
                             split.at("parts").get<std::vector<int64_t>>()});
  }
  spec.padded_rows = spec.dims.empty() ? 0 : spec.dims[0];
  ValidateParam(spec);
  MR_REQUIRE(ErrorCode::kCheckpoint, spec.numel() == numel, "{}: {} has {} elements, not {}", where,
             spec.name, spec.numel(), numel);
  return spec;
}

}  // namespace

std::string BlobName(std::string_view kind, const std::string& flat) {
  return fmt::format("{}/{}", kind, flat);
}

bool Saves(const ShardLayout& layout, FlatId flat, int rank) {
  return layout.mesh.Index(rank, layout.flat(flat).replicas) == 0;
}

std::vector<int> Savers(const ShardLayout& layout) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.mesh.world(); ++rank)
    for (const FlatId flat : layout.flat_ids()) {
      if (!Saves(layout, flat, rank)) continue;
      ranks.push_back(rank);
      break;
    }
  return ranks;
}

Json LayoutJson(const ShardLayout& layout) {
  Json json;
  for (const Axis axis :
       {Axis::kShard, Axis::kReplicate, Axis::kContext, Axis::kExpert, Axis::kTensor, Axis::kPipe})
    if (axis == Axis::kShard || axis == Axis::kReplicate || layout.mesh.Size(axis) > 1)
      json[KeyOf(axis)] = layout.mesh.Size(axis);
  json["flats"] = Json::array();
  for (const FlatParam& flat : layout.flats) {
    Json of_flat = {{"name", flat.name}, {"shard_numel", flat.shard_numel}};
    if (flat.shard != Axis::kShard) of_flat["shard"] = AxesJson(flat.shard);
    of_flat["params"] = Json::array();
    for (const ParamId id : flat.params) of_flat["params"].push_back(ParamJson(layout.param(id)));
    json["flats"].push_back(std::move(of_flat));
  }
  return json;
}

void ReadBlob(CheckpointReader& reader, int rank, const std::string& blob, int64_t begin,
              std::span<float> values) {
  const std::string& dtype = reader.Blob(rank, blob).dtype;
  const auto numel = static_cast<int64_t>(values.size());
  if (dtype == "F32") return reader.Read(rank, blob, begin * 4, values.data(), numel * 4);
  MR_REQUIRE(ErrorCode::kCheckpoint, dtype == "BF16", "{}: {} is {}; F32 and BF16 can be read",
             reader.folder(), blob, dtype);
  std::vector<BFloat16> narrow(values.size());
  reader.Read(rank, blob, begin * 2, narrow.data(), numel * 2);
  ConvertToFloat(narrow.data(), values.data(), numel);
}

std::string ConversionOf(const CheckpointReader& reader, int rank, const std::string& blob,
                         std::string_view slot, DType now) {
  const std::string& saved = reader.Blob(rank, blob).dtype;
  if ((saved == "BF16") == (now == DType::kBF16)) return "";
  return fmt::format("{} has {} in {}, this run keeps it in {}: {}", reader.folder(), slot,
                     saved == "BF16" ? "bf16" : "f32", Name(now),
                     now == DType::kBF16 ? "rounded to nearest" : "the values are the same");
}

SavedTensors::SavedTensors(CheckpointReader& reader, const nlohmann::json& layout)
    : reader_(reader) {
  int64_t ranks = 1;
  for (const Axis axis : kAxes) {
    const int64_t size = Within(layout.value(KeyOf(axis), nlohmann::json(1)), 1, kMostRanks / ranks,
                                reader.folder());
    layout_.mesh = layout_.mesh.With(axis, static_cast<int>(size));
    ranks *= size;
  }
  try {
    for (const nlohmann::json& flat : layout.at("flats")) AddFlat(flat);
  } catch (const Error& error) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}", reader.folder(), error.what()));
  }
}

void SavedTensors::AddFlat(const nlohmann::json& json) {
  FlatParam flat;
  flat.name = json.at("name").get<std::string>();
  const std::string where = "flat parameter " + flat.name;
  flat.shard_numel = Within(json.at("shard_numel"), 1, kMost / layout_.mesh.world(), where);
  if (json.contains("shard")) flat.shard = AxesFrom(json.at("shard"), where);
  const FlatId id{static_cast<int32_t>(layout_.flats.size())};
  for (const nlohmann::json& of_param : json.at("params")) {
    ParamPlacement param;
    param.flat = id;
    param.begin = Within(of_param.at("begin"), 0, kMost, where);
    param.spec = SpecFrom(of_param, where);
    param.dims = LocalDims(param.spec, layout_.mesh);
    for (const Split& split : param.spec.splits) flat.key.split = flat.key.split | split.axes;
    const ParamId param_id{static_cast<int32_t>(layout_.params.size())};
    ids_[param.spec.name] = param_id;
    flat.params.push_back(param_id);
    layout_.params.push_back(std::move(param));
  }
  MR_REQUIRE(ErrorCode::kCheckpoint, (flat.shard & flat.key.split).empty(),
             "{} is both sharded and split over {}", where, ToString(flat.shard & flat.key.split));
  layout_.flats.push_back(std::move(flat));
}

bool SavedTensors::Lacks(std::string_view kind, const ParamSpec& param) const {
  const auto it = ids_.find(param.name);
  if (it == ids_.end()) return false;  // Read says it
  const FlatParam& flat = layout_.flat(layout_.param(it->second).flat);
  return !reader_.Has(layout_.mesh.Group(0, flat.holders()).front(), BlobName(kind, flat.name));
}

std::string SavedTensors::Conversion(std::string_view kind, const ParamSpec& param,
                                     DType now) const {
  const auto it = ids_.find(param.name);
  if (it == ids_.end()) return "";  // Read says it
  const FlatParam& flat = layout_.flat(layout_.param(it->second).flat);
  return ConversionOf(reader_, layout_.mesh.Group(0, flat.holders()).front(),
                      BlobName(kind, flat.name), kind, now);
}

std::vector<float> SavedTensors::Read(std::string_view kind, const ParamSpec& param) {
  const auto it = ids_.find(param.name);
  MR_REQUIRE(ErrorCode::kCheckpoint, it != ids_.end(), "{} holds no parameter {}", reader_.folder(),
             param.name);
  const ParamPlacement& saved = layout_.param(it->second);
  MR_REQUIRE(ErrorCode::kCheckpoint, saved.spec.numel() == param.numel(),
             "{}: {} has {} elements, the model's has {}", reader_.folder(), param.name,
             saved.spec.numel(), param.numel());
  const FlatParam& flat = layout_.flat(saved.flat);
  const std::string blob = BlobName(kind, flat.name);
  std::vector<float> values(static_cast<size_t>(param.numel())), part;
  int64_t found = 0;
  for (const int rank : layout_.mesh.Group(0, flat.holders())) {
    std::vector<ParamRun> runs;
    ForEachRun(layout_, it->second, rank, [&](const ParamRun& run) { runs.push_back(run); });
    if (runs.empty()) continue;
    const int64_t numel = reader_.Blob(rank, blob).numel;
    MR_REQUIRE(ErrorCode::kCheckpoint, numel == flat.shard_numel,
               "{}: the shard of {} of rank {} has {} elements; {} are expected", reader_.folder(),
               flat.name, rank, numel, flat.shard_numel);
    // At once from the first to the last: behind a split there may be thousands.
    const int64_t begin = runs.front().local, end = runs.back().local + runs.back().numel;
    part.resize(static_cast<size_t>(end - begin));
    ReadBlob(reader_, rank, blob, begin, part);
    for (const ParamRun& run : runs) {
      std::copy_n(part.begin() + (run.local - begin), run.numel, values.begin() + run.logical);
      found += run.numel;
    }
  }
  MR_REQUIRE(ErrorCode::kCheckpoint, found == param.numel(),
             "{}: the shards of {} hold {} of the {} elements of {}", reader_.folder(), flat.name,
             found, param.numel(), param.name);
  return values;
}

}  // namespace millrace
