#include "runtime/run/data/known_documents.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

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

}  // namespace

bool FilesKnowDocuments(const Config& config) {
  if (!config.data.sources)
    return config.data.path && AllHaveIndices(config.data.kind, *config.data.path);
  return std::all_of(config.data.sources->begin(), config.data.sources->end(),
                     [&](const DataSource& source) {
                       return AllHaveIndices(config.data.KindOf(source), source.path);
                     });
}

}  // namespace millrace
