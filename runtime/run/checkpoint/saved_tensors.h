// Where a checkpoint's shards hold each parameter: as JSON in its manifest, and as logical tensors
// out of its blobs, whatever the mesh that saved them.
//
// Format   {"shard_world", "replicate", further axes of several ranks by name, "flats": [{"name",
//          "shard_numel", "shard": axes that cut it where they are not the shard axis alone,
//          "params": [{"name", "begin", "numel", and of a parameter that is split "dims",
//          "splits": [{"axes", "dim", "parts"}]}]}]}.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/checkpoint/checkpoint_reader.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

// The name of a flat parameter's shard of one kind of state.
std::string BlobName(std::string_view kind, const std::string& flat);

// Ranks that save a flat parameter: the first of each group of its replicas.
bool Saves(const ShardLayout& layout, FlatId flat, int rank);
// Ranks that save anything, ascending.
std::vector<int> Savers(const ShardLayout& layout);

// Equal of two layouts: their shards hold the same elements at the same places.
nlohmann::ordered_json LayoutJson(const ShardLayout& layout);

// Elements [begin, begin + values) of a blob of f32 or bf16, widened. Error(kCheckpoint): another
// dtype.
void ReadBlob(CheckpointReader& reader, int rank, const std::string& blob, int64_t begin,
              std::span<float> values);
// What a slot's dtype makes of what was saved: "" where nothing.
std::string ConversionOf(const CheckpointReader& reader, int rank, const std::string& blob,
                         std::string_view slot, DType now);

class SavedTensors {
 public:
  // `layout`: LayoutJson of any version. Error(kCheckpoint): one that no version has written.
  SavedTensors(CheckpointReader& reader, const nlohmann::json& layout);

  // Logical values [spec.numel()] of a parameter of the model, from whichever shards hold them.
  // Error(kCheckpoint): the checkpoint has no such parameter, or one of another shape.
  std::vector<float> Read(std::string_view kind, const ParamSpec& param);
  // Whether nothing of `kind` was kept of a parameter that the checkpoint has.
  bool Lacks(std::string_view kind, const ParamSpec& param) const;
  // ConversionOf the parameter's shards.
  std::string Conversion(std::string_view kind, const ParamSpec& param, DType now) const;

 private:
  void AddFlat(const nlohmann::json& json);

  CheckpointReader& reader_;
  ShardLayout layout_;  // of the ranks that saved it: what runs need, and no more
  std::map<std::string, ParamId, std::less<>> ids_;
};

}  // namespace millrace
