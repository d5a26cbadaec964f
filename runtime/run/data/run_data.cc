#include "runtime/run/data/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/hash.h"
#include "runtime/run/data/run_tokenizer.h"

namespace millrace {
namespace {

TokenSourceOptions OptionsOf(const Config& config, DataKind kind, const std::string& path) {
  TokenSourceOptions options{.kind = kind,
                             .path = path,
                             .seq_len = config.model.seq_len,
                             .vocab = config.model.Vocab(),
                             .seed = static_cast<uint64_t>(config.data.shuffle_seed)};
  const auto tokenizer = TokenizerOf(config);
  options.loss_mask = config.data.loss_mask;
  options.index_documents = config.data.MasksDocuments() && !config.data.end_of_document;
  options.tokenizer = {config.data.tokenizer, tokenizer ? tokenizer->hash() : ""};
  return options;
}

std::string UnusedName(const std::string& path, const std::vector<NamedSource>& others) {
  std::filesystem::path of = path;
  if (!of.has_filename()) of = of.parent_path();  // "folder/"
  const std::string extension = of.extension().string();
  const bool is_kind = extension == ".bin" || extension == ".idx" || extension == ".txt";
  const std::string stem = (is_kind ? of.stem() : of.filename()).string();  // not of "MPL-2.0"
  const auto taken = [&](const std::string& name) {
    return std::any_of(others.begin(), others.end(),
                       [&](const NamedSource& other) { return other.name == name; });
  };
  std::string name = stem;
  for (int n = 2; taken(name); ++n) name = fmt::format("{}-{}", stem, n);
  return name;
}

RunData OpenOne(const Config& config) {
  const DataSplit split = OpenDataSplit(
      OptionsOf(config, config.data.kind, config.data.path.value_or("")), config.data.val_path);
  return {{{"", 1, split.train}}, {{"", 1, split.held_out}}, false};
}

RunData OpenBlend(const Config& config, const DataSources& sources) {
  RunData data;
  data.is_blend = true;
  const std::optional<std::string>& common = config.data.val_path;
  for (const DataSource& source : sources) {
    const std::string name = UnusedName(source.path, data.train);
    const TokenSourceOptions options = OptionsOf(config, config.data.KindOf(source), source.path);
    if (common) {
      data.train.push_back({name, source.weight, OpenTrainingPart(options)});
      continue;
    }
    const DataSplit split = OpenDataSplit(options, source.val_path);
    data.train.push_back({name, source.weight, split.train});
    data.held_out.push_back({name, source.weight, split.held_out});
  }
  if (common)
    data.held_out.push_back({"", 1, OpenTokenSource(OptionsOf(config, config.data.kind, *common))});
  return data;
}

// What is trained on, for messages.
std::string PathsOf(const Config& config) {
  if (!config.data.sources) return config.data.path.value_or("");
  std::vector<std::string> paths;
  for (const DataSource& source : *config.data.sources) paths.push_back(source.path);
  return fmt::format("{}", fmt::join(paths, ", "));
}

// Where all that is trained on is masked, so is what is held out, and the other way round: losses
// over different targets are not to be compared. A blend may have sources without masks.
void CheckMasks(const Config& config, const RunData& data) {
  if (config.data.loss_mask != true) return;
  const auto masked = [](const NamedSource& one) { return one.source->has_loss_mask(); };
  const auto& train = data.train;
  MR_REQUIRE(ErrorCode::kData, std::any_of(train.begin(), train.end(), masked),
             "data.loss_mask is true, and no token file of {} has a mask (NAME.mask beside "
             "NAME.bin; millrace tokenize --from messages makes them)",
             PathsOf(config));
  const bool one_for_all = data.held_out.size() < train.size();
  for (size_t i = 0; i < data.held_out.size(); ++i) {
    const bool expected =
        one_for_all ? std::all_of(train.begin(), train.end(), masked) : masked(train[i]);
    const NamedSource& held_out = data.held_out[i];
    MR_REQUIRE(ErrorCode::kData, (one_for_all && !expected) || masked(held_out) == expected,
               "data.loss_mask is true: what is trained on ({}) has {}, and what is evaluated on "
               "({}) has {}",
               data.Describe(), expected ? "masks" : "none", held_out.source->Describe(),
               expected ? "none" : "some");
  }
}

}  // namespace

std::string RunData::Describe() const {
  if (!is_blend) return train.front().source->Describe();
  double sum = 0;
  for (const NamedSource& one : train) sum += one.weight;
  std::vector<std::string> parts;
  for (const NamedSource& one : train)
    parts.push_back(
        fmt::format("{:.4g}% {} ({})", 100 * one.weight / sum, one.name, one.source->Describe()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string RunData::Fingerprint() const {
  if (train.size() == 1) return train.front().source->Fingerprint();
  Hasher128 hash;
  for (const NamedSource& one : train)
    hash.Update(fmt::format("{} {}\n", one.weight, one.source->Fingerprint()));
  return hash.Hex();
}

std::string RunData::BlendJson() const {
  if (!is_blend) return "null";
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  for (const NamedSource& one : train)
    sources.push_back({{"name", one.name}, {"weight", one.weight}});
  return DumpJson(sources, {.replace = true});  // a path is any bytes
}

RunData OpenRunData(const Config& config) {
  const bool blend = config.data.sources && config.data.kind != DataKind::kSynthetic;
  RunData data = blend ? OpenBlend(config, *config.data.sources) : OpenOne(config);
  CheckMasks(config, data);
  return data;
}

}  // namespace millrace
