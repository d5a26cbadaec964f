// Blocks that predict further go to Hugging Face folders and back: under Nemotron's names and under
// DeepSeek-V3's, bit for bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "models/huggingface/config_json.h"
#include "runtime/base/error.h"
#include "runtime/data/safetensors/safetensors_folder.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/huggingface/exchange.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/runtime/run/golden_data.h"

namespace millrace {
namespace {

using Strings = std::vector<std::string>;

const Strings kNemotron = {
    "model.family=nemotron_h", "model.pattern=M*E",      "model.mtp.depth=2",
    "model.mtp.pattern=*E",    "model.d_model=22",       "model.heads=4",
    "model.kv_heads=2",        "model.head_dim=5",       "model.seq_len=7",
    "model.vocab=37",          "model.mamba.heads=6",    "model.mamba.head_dim=5",
    "model.mamba.groups=2",    "model.mamba.state=3",    "model.moe.experts=3",
    "model.moe.ffn=9",         "model.moe.shared_ffn=11"};
const Strings kQwen3Moe = {"model.family=qwen3_moe", "model.layers=2",  "model.mtp.depth=2",
                           "model.d_model=22",       "model.heads=4",   "model.kv_heads=2",
                           "model.head_dim=6",       "model.seq_len=7", "model.vocab=37",
                           "model.moe.experts=3",    "model.moe.ffn=9"};
const Strings kLlama = {"model.family=llama", "model.layers=2",  "model.mtp.depth=1",
                        "model.d_model=22",   "model.heads=4",   "model.kv_heads=2",
                        "model.head_dim=6",   "model.seq_len=7", "model.vocab=37",
                        "model.ffn=31"};

LoadedConfig ConfigOf(Strings sets) {
  sets.insert(sets.begin(), "data.kind=synthetic");
  return LoadRunConfig({}, sets, {});
}

using Weights = std::map<std::string, std::vector<float>>;

// Of a run as configured, by our names; exported to `folder`, if it is given.
Weights WeightsOf(const LoadedConfig& config, const std::string& folder) {
  Weights weights;
  test::RunSessions(config, 1, {"train"}, [&](Session& session) {
    // Biases begin as zeros, which would not say where they go.
    WriteLogicalTensors(session.engine(), "master", [&](const ParamPlacement& param) {
      std::vector<float> values(static_cast<size_t>(param.spec.numel()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(param.begin) + static_cast<float>(i) * 0x1p-10f - 3;
      return values;
    });
    ForEachLogicalTensor(session.engine(), "master",
                         [&](const ParamPlacement& param, std::span<const float> values) {
                           weights[param.spec.name] = {values.begin(), values.end()};
                         });
    ExportHuggingFace(session.engine(), session.run().spec, session.config().model, folder, {},
                      FileSystem::Posix());
  });
  return weights;
}

Weights Imported(const std::string& folder, Strings sets) {
  Weights weights;
  sets.push_back("model.init_from=" + folder);
  test::RunSessions(ConfigOf(sets), 1, {"train"}, [&](Session& session) {
    ForEachLogicalTensor(session.engine(), "master",
                         [&](const ParamPlacement& param, std::span<const float> values) {
                           weights[param.spec.name] = {values.begin(), values.end()};
                         });
  });
  return weights;
}

std::vector<float> Stored(const SafetensorsFolder& folder, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(folder.Tensor(name).numel));
  folder.ReadFloats(name, 0, folder.Tensor(name).numel, values.data());
  return values;
}

// [e | h], row by row.
void CheckJoined(const std::vector<float>& joined, const std::vector<float>& e,
                 const std::vector<float>& h) {
  constexpr size_t kWidth = 22;
  REQUIRE(joined.size() == 2 * kWidth * kWidth);
  bool same = true;
  for (size_t row = 0; row < kWidth; ++row)
    for (size_t c = 0; c < kWidth; ++c) {
      same &= joined[row * 2 * kWidth + c] == e[row * kWidth + c];
      same &= joined[row * 2 * kWidth + kWidth + c] == h[row * kWidth + c];
    }
  CHECK(same);
}

TEST_CASE("further blocks come back from a folder bit for bit", "[huggingface][mtp]") {
  for (const Strings& sets : {kNemotron, kQwen3Moe, kLlama}) {
    INFO(sets.front());
    const TempDir dir;
    const Weights weights = WeightsOf(ConfigOf(sets), dir / "out");
    CHECK(Imported(dir / "out", {}) == weights);
    // What the file says nothing of stays the run's.
    CHECK(Imported(dir / "out", {"model.mtp.loss_scale=0.7"}) == weights);
    CHECK_THROWS_WITH(Imported(dir / "out", {"model.mtp.depth=3"}),
                      Catch::Contains("model.mtp.depth = 3, but config.json says"));
  }
}

TEST_CASE("Nemotron's have a layer of mtp.layers for each branch", "[huggingface][mtp]") {
  const TempDir dir;
  const Weights weights = WeightsOf(ConfigOf(kNemotron), dir / "out");
  const SafetensorsFolder folder(dir / "out");
  std::set<std::string> names;
  for (const std::string& name : folder.names())
    if (name.starts_with("mtp.")) names.insert(name);
  std::set<std::string> want;
  for (const int depth : {0, 1}) {
    const std::string first = "mtp.layers." + std::to_string(2 * depth) + ".",
                      second = "mtp.layers." + std::to_string(2 * depth + 1) + ".";
    for (const char* name : {"enorm", "hnorm", "eh_proj", "norm", "mixer.q_proj", "mixer.k_proj",
                             "mixer.v_proj", "mixer.o_proj"})
      want.insert(first + name + ".weight");
    for (const char* name : {"norm", "final_layernorm", "mixer.gate",
                             "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"})
      want.insert(second + name + ".weight");
    want.insert(second + "mixer.gate.e_score_correction_bias");
    for (int expert = 0; expert < 3; ++expert)
      for (const char* name : {"up_proj", "down_proj"})
        want.insert(second + "mixer.experts." + std::to_string(expert) + "." + name + ".weight");
  }
  CHECK(names == want);
  CheckJoined(Stored(folder, "mtp.layers.2.eh_proj.weight"), weights.at("mtp.2.e_proj.weight"),
              weights.at("mtp.2.h_proj.weight"));
  CHECK(Stored(folder, "mtp.layers.3.final_layernorm.weight") ==
        weights.at("mtp.2.norm_out.weight"));
  CHECK(Stored(folder, "mtp.layers.1.norm.weight") == weights.at("mtp.1.norm_2.weight"));
}

TEST_CASE("others' are layers behind the trunk's", "[huggingface][mtp]") {
  const TempDir dir;
  const Weights weights = WeightsOf(ConfigOf(kQwen3Moe), dir / "out");
  const SafetensorsFolder folder(dir / "out");
  const auto& names = folder.names();
  for (const char* name :
       {"model.layers.2.enorm.weight", "model.layers.3.hnorm.weight",
        "model.layers.3.self_attn.q_norm.weight", "model.layers.3.mlp.experts.2.gate_proj.weight"})
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
  CheckJoined(Stored(folder, "model.layers.3.eh_proj.weight"), weights.at("mtp.2.e_proj.weight"),
              weights.at("mtp.2.h_proj.weight"));
  CHECK(Stored(folder, "model.layers.2.shared_head.norm.weight") ==
        weights.at("mtp.1.norm_out.weight"));
}

}  // namespace
}  // namespace millrace
