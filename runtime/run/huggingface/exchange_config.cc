#include "runtime/run/huggingface/exchange_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "models/huggingface/config_json.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/document.h"
#include "runtime/config/keys.h"
#include "runtime/config/validate.h"
#include "runtime/data/input_file.h"
#include "runtime/run/data/known_documents.h"
#include "runtime/run/huggingface/exchange.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using Problems = std::vector<std::string>;

std::string In(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

ModelConfig ReadModel(const std::string& folder) {
  constexpr int64_t kLargestConfig = 1'000'000;
  const std::string path = In(folder, "config.json");
  MR_REQUIRE(ErrorCode::kData, fs::is_directory(folder),
             "{} is not a folder; a Hugging Face folder has config.json and .safetensors files",
             folder);
  return ModelFromHuggingFace(ReadWholeFile(path, kLargestConfig, ErrorCode::kData), path);
}

// How experts are evened and losses weighed while a model is trained: no file says it.
bool IsOfTraining(const Key& key) {
  constexpr std::string_view kKeys[] = {"model.moe.aux_loss",         "model.moe.aux_coefficient",
                                        "model.moe.bias_rate",        "model.moe.gate",
                                        "model.moe.receive_capacity", "model.mtp.loss_scale"};
  return std::find(std::begin(kKeys), std::end(kKeys), key.path) != std::end(kKeys);
}

// rope_scaling apart, which is compared whole: null differs from any values.
bool IsModelKey(const Key& key) {
  return key.path.starts_with("model.") && key.section() != "model.rope_scaling" &&
         key.path != "model.init_from" && !IsOfTraining(key);
}

// Longer than the positions that the model was made for is a guess; shorter is not, where
// positions have no weights.
bool SeqLenFits(const ModelConfig& ours, const ModelConfig& theirs) {
  return theirs.family == ModelConfig::Family::kGpt2 ? ours.seq_len == theirs.seq_len
                                                     : ours.seq_len <= theirs.seq_len;
}

// A null is what it stands for, from whatever folder the weights come.
KeyValue InForce(const Key& key, Config config) {
  config.model.init_from.reset();
  return ValueInForce(key, config, std::nullopt);
}

// `key` of both models, resolved; what is wrong, if anything is.
void CompareKey(const Key& key, const Config& ours, const Config& theirs, Problems* problems) {
  if (key.path == "model.seq_len") {
    if (!SeqLenFits(ours.model, theirs.model))
      problems->push_back(fmt::format(
          "model.seq_len = {}, but config.json has {} positions{}", ours.model.seq_len,
          theirs.model.seq_len,
          theirs.model.family == ModelConfig::Family::kGpt2 ? "" : "; at most these can be used"));
    return;
  }
  const KeyValue a = InForce(key, ours), b = InForce(key, theirs);
  if (a != b)
    problems->push_back(fmt::format("{} = {}, but config.json says {}", key.path,
                                    DumpJson(ToJson(a)), DumpJson(ToJson(b))));
}

std::string Text(const std::optional<RopeScalingConfig>& s) {
  if (!s) return "null";
  return fmt::format(
      "llama3 (factor {}, low_freq_factor {}, high_freq_factor {}, "
      "original_max_position_embeddings {})",
      s->factor, s->low_freq_factor, s->high_freq_factor, s->original_max_position_embeddings);
}

void CompareScaling(const ModelConfig& ours, const ModelConfig& theirs, Problems* problems) {
  if (ours.rope_scaling == theirs.rope_scaling) return;
  problems->push_back(fmt::format("model.rope_scaling is {}, but config.json says {}",
                                  Text(ours.rope_scaling), Text(theirs.rope_scaling)));
}

void ThrowIfAny(const Problems& problems, const std::string& folder) {
  MR_REQUIRE(ErrorCode::kConfig, problems.empty(), "model.init_from = {}: {} {}:\n  {}", folder,
             problems.size(), problems.size() == 1 ? "problem" : "problems",
             fmt::join(problems, "\n  "));
}

// As values, or as null: no scaling.
bool GivenScaling(const LoadedConfig& loaded) {
  return std::any_of(loaded.origin.begin(), loaded.origin.end(), [&](const auto& entry) {
    return entry.first.starts_with("model.rope_scaling") && loaded.Given(entry.first);
  });
}

bool HasTokenizer(const std::string& folder) {
  const auto has = [&](const char* name) { return fs::exists(fs::path(folder) / name); };
  return has("tokenizer.json") || has("tokenizer.model") || has("vocab.json");
}

}  // namespace

ModelConfig Resolved(ModelConfig m) {
  m.kv_heads = m.KvHeads();
  m.head_dim = m.HeadDim();
  m.ffn = m.Ffn();
  m.vocab = m.Vocab();
  m.tied = m.Tied();
  m.activation = m.ActivationKind();
  if (m.Rope()) m.rope_theta = m.RopeTheta();
  return m;
}

Config ApplyHuggingFaceConfig(const LoadedConfig& loaded, const std::string& folder) {
  Config theirs;
  theirs.model = ReadModel(folder);
  Config result = loaded.config;
  Problems problems;
  for (const Key& key : Keys()) {
    if (!IsModelKey(key)) continue;
    // An explicit null stands for a default, which the file now is.
    if (loaded.Given(key.path) && key.get(loaded.config) != KeyValue{})
      CompareKey(key, loaded.config, theirs, &problems);
    else
      key.set(result, key.get(theirs));
  }
  if (GivenScaling(loaded))
    CompareScaling(loaded.config.model, theirs.model, &problems);
  else
    result.model.rope_scaling = theirs.model.rope_scaling;
  if (loaded.needs_data && result.data.kind == DataConfig::Kind::kText && HasTokenizer(folder))
    problems.push_back(
        "data.kind = text feeds bytes, but the folder has a tokenizer, whose ids the model was "
        "trained on; tokenize beforehand and set data.kind to tokens");
  if (problems.empty())
    for (const ConfigProblem& problem : Validate(
             result, {.world = loaded.world, .has_cuda = true, .needs_data = loaded.needs_data}))
      problems.push_back(fmt::format("{}: {}", fmt::join(problem.keys, ", "), problem.text));
  ThrowIfAny(problems, folder);
  return result;
}

namespace {

LoadedConfig WithFolder(LoadedConfig loaded) {
  const std::optional<std::string> folder = loaded.config.model.init_from;
  if (!folder) return loaded;
  const Config given = std::exchange(loaded.config, ApplyHuggingFaceConfig(loaded, *folder));
  for (const Key& key : Keys())
    if (key.get(given) != key.get(loaded.config))
      loaded.origin[key.path] = In(*folder, "config.json");
  return loaded;
}

}  // namespace

LoadedConfig LoadRunConfig(std::span<const std::string> files, std::span<const std::string> sets,
                           const ConfigContext& context) {
  return WithDocumentMask(WithFolder(LoadConfig(files, sets, context)), context);
}

LoadedConfig LoadRunConfigTexts(std::span<const ConfigText> texts, const ConfigContext& context) {
  return WithDocumentMask(WithFolder(LoadConfigTexts(texts, {}, context)), context);
}

void RequireModelOf(const std::string& folder, const ModelConfig& model) {
  Config ours, theirs;
  ours.model = Resolved(model);
  theirs.model = ReadModel(folder);
  ours.model.init_std = theirs.model.init_std;  // how weights begin is what the folder replaces
  Problems problems;
  for (const Key& key : Keys())
    if (IsModelKey(key)) CompareKey(key, ours, theirs, &problems);
  CompareScaling(ours.model, theirs.model, &problems);
  ThrowIfAny(problems, folder);
}

}  // namespace millrace
