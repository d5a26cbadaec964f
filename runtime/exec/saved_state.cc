#include "runtime/exec/saved_state.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {

using Json = nlohmann::ordered_json;

std::string CheckpointRoot(const std::string& run_dir) { return run_dir + "/checkpoints"; }
std::string BlobName(const char* kind, const std::string& flat) {
  return fmt::format("{}/{}", kind, flat);
}

// Where each parameter lies in the saved shards: all that a reader of another world needs.
Json LayoutJson(const ShardLayout& layout) {
  Json flats = Json::array();
  for (const FlatParam& flat : layout.flats) {
    Json params = Json::array();
    for (const ParamId id : flat.params) {
      const ParamPlacement& param = layout.param(id);
      params.push_back(
          {{"name", param.spec.name}, {"begin", param.begin}, {"numel", param.spec.numel()}});
    }
    flats.push_back({{"name", flat.name}, {"shard_numel", flat.shard_numel}, {"params", params}});
  }
  return {
      {"shard_world", layout.mesh.shard}, {"replicate", layout.mesh.replicate}, {"flats", flats}};
}

Json CountersJson(const StepCounters& c) {
  return {c.kernels.concatenated_bytes, c.kernels.cast_bytes,
          c.kernels.copied_bytes,       c.comm.all_gathers,
          c.comm.reduce_scatters,       c.comm.all_reduces,
          c.comm.gathered_bytes,        c.comm.reduced_bytes,
          c.comm.all_reduced_bytes,     c.graph_launches};
}

StepCounters CountersFrom(const nlohmann::json& j) {
  const auto v = j.get<std::vector<int64_t>>();
  MR_REQUIRE(ErrorCode::kCheckpoint, v.size() == 10,
             "a checkpoint's counters hold {} values; 10 are expected", v.size());
  return {{v[0], v[1], v[2]}, {v[3], v[4], v[5], v[6], v[7], v[8]}, v[9]};
}

std::optional<double> EvalLossOf(const CheckpointManifest& manifest) {
  const auto user = ParseJson(manifest.user);
  const auto it = user.find("eval_loss");
  if (it == user.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

}  // namespace millrace
