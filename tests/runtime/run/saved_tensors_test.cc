// Checkpoints of split models: saved at one mesh, read at another; and of versions before splits.
#include "runtime/run/checkpoint/saved_tensors.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/checkpoint/checkpoint_writer.h"
#include "runtime/plan/layout/param_init.h"
#include "runtime/plan/layout/param_runs.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/split_models.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

// What the ranks of `layout` save of the initial weights of `seed`. Returns the folder.
std::string Save(const ShardLayout& layout, const std::string& root, uint64_t seed) {
  const CheckpointPlace place{root, 1, "id"};
  PrepareCheckpoint(place);
  std::vector<int64_t> ranks;
  for (const int rank : Savers(layout)) {
    std::vector<CheckpointWriter::Blob> blobs;
    std::vector<std::vector<float>> shards;
    for (size_t f = 0; f < layout.flats.size(); ++f) {
      const FlatId flat{static_cast<int32_t>(f)};
      if (!Saves(layout, flat, rank)) continue;
      const int64_t numel = layout.flats[f].shard_numel;
      blobs.push_back({BlobName("master", layout.flats[f].name), DType::kF32, numel});
      FillShard(layout, flat, rank, seed, shards.emplace_back(static_cast<size_t>(numel)).data());
    }
    CheckpointWriter writer(place, rank, blobs);
    for (size_t i = 0; i < shards.size(); ++i)
      writer.Write(static_cast<int64_t>(i), shards[i].data(),
                   static_cast<int64_t>(shards[i].size() * sizeof(float)));
    writer.Finish();
    ranks.push_back(rank);
  }
  CheckpointManifest manifest;
  manifest.step = 1;
  manifest.world = layout.mesh.world();
  manifest.identity = "test";
  manifest.user = DumpJson(LayoutJson(layout));
  PublishCheckpoint(place, manifest, ranks);
  return place.Folder();
}

std::vector<float> Initial(const ParamSpec& param, uint64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < param.numel(); ++i) values.push_back(InitialValue(param, seed, i));
  return values;
}

TEST_CASE("what any mesh has saved is read as the same logical values", "[run][checkpoint]") {
  const uint32_t seed = GENERATE(range(200u, 215u));
  SplitModels models(seed);
  const ModelSpec spec = models.RandomModel();
  const ShardLayout layout = PlanShards(spec, models.RandomMesh(), {});
  INFO(ToString(layout));
  const TempDir dir;
  CheckpointReader reader(Save(layout, dir.path(), seed));
  // Replicas save nothing.
  REQUIRE(static_cast<int>(reader.manifest().files.size()) ==
          layout.mesh.world() / layout.mesh.Size(Axis::kReplicate));
  SavedTensors saved(reader, ParseJson(reader.manifest().user));
  for (const ParamPlacement& param : layout.params) {
    CAPTURE(param.spec.name);
    REQUIRE(saved.Read("master", param.spec) == Initial(param.spec, seed));
  }
}

ModelSpec TwoMatrices() {
  ModelSpec spec;
  spec.family = "test";
  UnitSpec unit{"h.0", {}};
  for (const char* name : {"a", "b"}) {
    ParamSpec param;
    param.name = name;
    param.dims = {6, 20};
    param.padded_rows = 6;
    unit.params.push_back(param);
  }
  spec.units.push_back(unit);
  return spec;
}

TEST_CASE("without splits the layout is written as before there were any", "[run][checkpoint]") {
  CHECK(DumpJson(LayoutJson(PlanShards(TwoMatrices(), {2, 3}, {}))) ==
        R"({"shard_world":3,"replicate":2,"flats":[{"name":"h.0","shard_numel":128,"params":)"
        R"([{"name":"a","begin":0,"numel":120},{"name":"b","begin":128,"numel":120}]}]})");
}

TEST_CASE("axes, dims and splits are saved where they are more than one rank's",
          "[run][checkpoint]") {
  ModelSpec spec = TwoMatrices();
  spec.units[0].params[1].splits = {{Axis::kTensor, 0, {2, 4}}};
  const Mesh mesh = Mesh(1, 2).With(Axis::kTensor, 2);
  CHECK(DumpJson(LayoutJson(PlanShards(spec, mesh, {}))) ==
        R"({"shard_world":2,"replicate":1,"tensor":2,"flats":[)"
        R"({"name":"h.0","shard_numel":64,"shard":["shard","tensor"],"params":)"
        R"([{"name":"a","begin":0,"numel":120}]},)"
        R"({"name":"h.0@tensor","shard_numel":64,"params":[{"name":"b","begin":0,"numel":120,)"
        R"("dims":[6,20],"splits":[{"axes":["tensor"],"dim":0,"parts":[2,4]}]}]}]})");
  CHECK(LayoutJson(PlanShards(spec, {1, 2}, {})) ==
        LayoutJson(PlanShards(TwoMatrices(), {1, 2}, {})));
}

TEST_CASE("a layout that none of our versions writes is refused", "[run][checkpoint]") {
  const TempDir dir;
  ModelSpec spec = TwoMatrices();
  spec.units[0].params[1].splits = {{Axis::kTensor, 0, {2, 4}}};
  const ShardLayout layout = PlanShards(spec, Mesh(1, 2).With(Axis::kTensor, 2), {});
  CheckpointReader reader(Save(layout, dir.path(), 1));
  const Json good = ParseJson(reader.manifest().user);
  const auto refusal = [&](const char* pointer, const Json& value) {
    Json layout_json = good;
    layout_json[Json::json_pointer(pointer)] = value;
    try {
      SavedTensors saved(reader, layout_json);
      for (const ParamSpec& param : spec.units[0].params) saved.Read("master", param);
    } catch (const Error& error) {
      CAPTURE(error.what());
      CHECK(error.code() == ErrorCode::kCheckpoint);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string param = "/flats/1/params/0";
  CHECK(refusal("/flats/0/name", "h.0") == "accepted");
  CHECK_THAT(refusal("/tensor", 0), Contains("0 is no place or size"));
  CHECK_THAT(refusal("/tensor", 1 << 20), Contains("is no place or size"));
  CHECK_THAT(refusal("/tensor", 4), Contains("cannot be cut over 4 ranks"));
  CHECK_THAT(refusal("/flats/0/shard_numel", 0), Contains("0 is no place or size"));
  CHECK_THAT(refusal("/flats/0/shard_numel", 65), Contains("has 64 elements; 65 are expected"));
  CHECK_THAT(refusal("/flats/0/shard", Json::array({"sharp"})), Contains("there is no axis"));
  CHECK_THAT(refusal("/flats/1/shard", Json::array({"tensor"})),
             Contains("both sharded and split"));
  CHECK_THAT(refusal((param + "/begin").c_str(), -1), Contains("-1 is no place"));
  CHECK_THAT(refusal((param + "/begin").c_str(), 100), Contains("hold 56 of the 120 elements"));
  CHECK_THAT(refusal((param + "/numel").c_str(), 240), Contains("b has 120 elements, not 240"));
  CHECK_THAT(refusal((param + "/dims/0").c_str(), 5), Contains("the parts of dim 0 are 6"));
  CHECK_THAT(refusal((param + "/dims").c_str(), Json::array({6, 6, 3})), Contains("108 elements"));
  CHECK_THAT(refusal((param + "/dims").c_str(), Json::array({1000000000, 1000000000, 1000000000})),
             Contains("is no place or size"));
  CHECK_THAT(refusal((param + "/splits/0/dim").c_str(), 2), Contains("split on dim 2"));
  CHECK_THAT(refusal((param + "/splits/0/axes").c_str(), Json::array({"shard"})),
             Contains("a split over shard"));
  CHECK_THAT(refusal((param + "/splits/0/parts").c_str(), Json::array({3, 3})),
             Contains("cannot be cut"));
  CHECK_THAT(refusal((param + "/name").c_str(), "c"), Contains("holds no parameter b"));
}

}  // namespace
}  // namespace millrace
