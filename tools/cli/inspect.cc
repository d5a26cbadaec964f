// millrace inspect: what a checkpoint, a safetensors file or a token file holds, and whether it is sound.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/data/checkpoint_manifest.h"
#include "runtime/data/checkpoint_store.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/token_source.h"
#include "tools/cli/command.h"
#include "tools/cli/console.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

int InspectCheckpoint(const std::string& folder, bool json) {
  const CheckpointManifest manifest = ReadManifest(folder);
  const std::vector<std::string> problems = VerifyCheckpoint(folder);
  const Json user = Json::parse(manifest.user);
  int64_t bytes = 0;
  for (const CheckpointFile& file : manifest.files) bytes += file.bytes;
  const Json summary = {{"kind", "checkpoint"},   {"step", manifest.step}, {"world", manifest.world}, {"files", manifest.files.size()},
                        {"bytes", bytes},         {"model", user.value("model", "")}, {"adam_t", user.value("adam_t", int64_t{0})},
                        {"skipped", user.value("skipped", int64_t{0})}, {"sound", problems.empty()}, {"problems", problems}};
  if (json) {
    std::cout << summary.dump() << std::endl;
  } else {
    std::cout << fmt::format("checkpoint of step {} by {} ranks: {} files, {}\nmodel: {}\nupdates applied {}, skipped {}\n", manifest.step,
                             manifest.world, manifest.files.size(), HumanBytes(bytes), user.value("model", ""), user.value("adam_t", int64_t{0}),
                             user.value("skipped", int64_t{0}));
    for (const std::string& problem : problems) std::cout << "damaged: " << problem << "\n";
    std::cout << (problems.empty() ? "every checksum matches" : "do not use it") << std::endl;
  }
  return problems.empty() ? 0 : ExitCode(ErrorCode::kCheckpoint);
}

int InspectSafetensors(const std::string& path, bool json) {
  const SafetensorsFile file(path);
  Json tensors = Json::array();
  for (const TensorInfo& tensor : file.tensors())
    tensors.push_back({{"name", tensor.spec.name}, {"dtype", tensor.spec.dtype}, {"shape", tensor.spec.shape}});
  if (json) {
    std::cout << Json{{"kind", "safetensors"}, {"tensors", tensors}}.dump() << std::endl;
    return 0;
  }
  for (const Json& tensor : tensors)
    std::cout << fmt::format("{:<48} {:<5} {}", tensor["name"].get<std::string>(), tensor["dtype"].get<std::string>(), tensor["shape"].dump()) << "\n";
  std::cout << fmt::format("{} tensors", tensors.size()) << std::endl;
  return 0;
}

int InspectTokens(const std::string& path, bool json) {
  TokenSourceOptions options;
  options.kind = TokenSourceOptions::Kind::kTokens;
  options.path = path;
  options.seq_len = 1;
  options.vocab = int64_t{1} << 31;
  const auto source = OpenTokenSource(options);
  if (json)
    std::cout << Json{{"kind", "tokens"}, {"tokens", source->windows() + 1}, {"description", source->Describe()}}.dump() << std::endl;
  else
    std::cout << source->Describe() << std::endl;
  return 0;
}

}  // namespace

int InspectVerb(const std::string& path, bool json) {
  namespace fs = std::filesystem;
  MR_REQUIRE(ErrorCode::kData, fs::exists(path), "{} does not exist", path);
  if (fs::is_directory(path) && fs::exists(fs::path(path) / kManifestName)) return InspectCheckpoint(path, json);
  if (fs::is_directory(path) && fs::exists(fs::path(path) / "checkpoints")) {
    int worst = 0;
    for (const CheckpointEntry& entry : ListCheckpoints((fs::path(path) / "checkpoints").string())) {
      if (!json) std::cout << entry.folder << "\n";
      if (!entry.manifest) {
        std::cout << "damaged: " << entry.problem << std::endl;
        worst = ExitCode(ErrorCode::kCheckpoint);
        continue;
      }
      worst = std::max(worst, InspectCheckpoint(entry.folder, json));
    }
    return worst;
  }
  if (fs::path(path).extension() == ".safetensors") return InspectSafetensors(path, json);
  return InspectTokens(path, json);
}

}  // namespace millrace
