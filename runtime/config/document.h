// What the table of keys looks like to people and to other programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config/keys.h"
#include "runtime/config/load.h"

namespace millrace {

// JSON Schema, draft 7. Accepts exactly what the parser accepts, but for the rules
// between keys (validate.h).
std::string ConfigSchemaJson();

// configs/README.md.
std::string ConfigDocsMarkdown();

// The key's value; where that is null, the value that is in force instead, if the other keys and
// the world decide it.
KeyValue ValueInForce(const Key& key, const Config& config, std::optional<int64_t> world);

// A line per key: path, value, where it comes from. A null shows the value that is in force
// instead, where the other keys and the world decide it. Then notes: what a data rank is, where it
// is several ranks, and what has no effect.
std::string ConfigShow(const LoadedConfig& loaded);

}  // namespace millrace
