// One of the sources that `data.sources` blends, as plain data and as JSON:
//   {"path": "a.bin", "weight": 0.7, "kind": "tokens", "val_path": "a_val.bin"}
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/policies.h"

namespace millrace {

struct DataSource {
  std::string path;
  double weight = 1;                         // of samples, over the sum of all weights
  std::optional<DataKind> kind = {};         // text or tokens; none: data.kind
  std::optional<std::string> val_path = {};  // none: as data.val_path has it of one source
  bool operator==(const DataSource&) const = default;
};

using DataSources = std::vector<DataSource>;

inline constexpr size_t kMostSources = 1024;

// What a list of sources is, for messages.
std::string AllowedSources();

// None where `given` is no such list; `problem` then says what is wrong with which of them: "the
// second has no path".
std::optional<DataSources> SourcesFrom(const nlohmann::json& given, std::string* problem);

void to_json(nlohmann::json& json, const DataSource& source);

}  // namespace millrace
