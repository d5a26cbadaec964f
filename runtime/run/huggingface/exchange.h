// Hugging Face folders in and out: config.json + safetensors <-> a configuration's model keys and
// an engine's master weights. Names, layouts and fields are models/huggingface's; this is the part
// that touches files and ranks.
//
// Errors   kConfig: the configuration and config.json disagree, or an export's folder holds
//          something. kData: the folder cannot be read as a model, or not as this one. kIo: the
//          machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/config/load.h"
#include "runtime/data/file_system.h"
#include "runtime/plan/layout/model_spec.h"

namespace millrace {

class Engine;

// The configuration with each model key that is not given (or null) taken from folder/config.json,
// and checked again as a whole. A given key must agree with the file; but a llama's seq_len may be
// shorter than max_position_embeddings, as its positions have no weights. Byte-level text on a
// model that comes with a tokenizer is refused: bytes would be taken for that tokenizer's ids.
Config ApplyHuggingFaceConfig(const LoadedConfig& loaded, const std::string& folder);

// LoadConfig; and with model.init_from, ApplyHuggingFaceConfig of that folder, which is then the
// origin of the keys that it gave. Then WithDocumentMask (run/data/known_documents.h).
LoadedConfig LoadRunConfig(std::span<const std::string> files, std::span<const std::string> sets,
                           const ConfigContext& context);
LoadedConfig LoadRunConfigTexts(std::span<const ConfigText> texts, const ConfigContext& context);

// Master weights from the folder, bit for bit as it stores them (F32, BF16, F16); moments and
// scalars begin at zero. `model` is the configuration's, and must agree with config.json. Each rank
// reads what its shard needs, one parameter at a time.
void LoadHuggingFaceWeights(Engine& engine, const ModelSpec& spec, const ModelConfig& model,
                            const std::string& folder);

struct ExportOptions {
  int64_t shard_bytes = 5'000'000'000;  // of tensors in one file; more: several files and an index
  std::string tokenizer_json = {};      // the text of a tokenizer.json beside them; "": none
};

// Collective. Writes config.json, generation_config.json and model.safetensors (f32 master weights)
// so that transformers 4 and 5 load them. The folder must not exist, or be empty; it appears
// complete or not at all. Rank 0 writes, one parameter in memory at a time.
void ExportHuggingFace(Engine& engine, const ModelSpec& spec, const ModelConfig& model,
                       const std::string& folder, const ExportOptions& options = {},
                       FileSystem& files = FileSystem::Posix());

}  // namespace millrace
