#include "runtime/run/data/known_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/config/validate.h"
#include "runtime/data/tokens/megatron_index.h"
#include "runtime/data/tokens/token_files.h"

namespace millrace {
namespace {

bool HasIndex(const std::string& file) {
  std::error_code ignored;
  const std::string index = MegatronIndexPath(file);
  return !index.empty() && std::filesystem::exists(index, ignored);
}

bool AllHaveIndices(DataKind kind, const std::string& path) {
  if (kind != DataKind::kTokens) return false;
  const std::vector<std::string> files = ListTokenFiles(path, TokenFileKind::kTokens);
  return std::all_of(files.begin(), files.end(), HasIndex);
}

// By what documents are known; "" if they are not.
std::string KnownBy(const Config& config) {
  if (config.data.end_of_document)
    return fmt::format("documents end with {}, data.end_of_document", *config.data.end_of_document);
  try {
    if (FilesKnowDocuments(config)) return "Megatron's indices say where documents begin";
  } catch (const Error&) {
    // Files that cannot be read are found where they are opened.
  }
  return "";
}

// Why documents are not masked by default although they are known; "" if they are.
std::string WhyNotMasked(Config config, const ConfigContext& context) {
  config.data.document_mask = true;
  for (const ConfigProblem& problem : Validate(config, context))
    if (std::find(problem.keys.begin(), problem.keys.end(), "data.document_mask") !=
        problem.keys.end())
      return problem.text;
  using Backend = ExecutionConfig::Backend;
  const Backend backend = config.execution.backend;
  const bool gpu = backend == Backend::kCuda ||
                   (backend == Backend::kAuto && context.has_cuda && !context.auto_is_cpu);
  return gpu ? "on GPUs steps take longer with masks, GPT-2 124M's 1.12 times as long" : "";
}

}  // namespace

bool FilesKnowDocuments(const Config& config) {
  if (!config.data.sources)
    return config.data.path && AllHaveIndices(config.data.kind, *config.data.path);
  return std::all_of(config.data.sources->begin(), config.data.sources->end(),
                     [&](const DataSource& source) {
                       return AllHaveIndices(config.data.KindOf(source), source.path);
                     });
}

LoadedConfig WithDocumentMask(LoadedConfig loaded, const ConfigContext& context) {
  std::optional<bool>& mask = loaded.config.data.document_mask;
  if (mask) return loaded;
  const bool reads = context.needs_data && !context.caller_steps;
  const std::string known = reads ? KnownBy(loaded.config) : "";
  const std::string why = known.empty() ? "" : WhyNotMasked(loaded.config, context);
  mask = !known.empty() && why.empty();
  if (*mask)
    loaded.notes.push_back(
        fmt::format("data.document_mask is on, as {}; false lets attention go across them", known));
  else if (!known.empty())
    loaded.notes.push_back(fmt::format("data.document_mask is off, although {}: {}", known, why));
  return loaded;
}

}  // namespace millrace
