// From JSON files and `--set a.b=c` to a Config, or one error that lists everything that is wrong.
//
// Later files win over earlier ones, `--set` over files; objects merge key by key. Each value is
// typed by its key, so `--set run.dir=7` is a string, and strings need no quotes. A file may carry
// "$schema" for editors.
//
// Idle     A file is one author, and all `--set` together are one, the last. A key that can have no
//          effect (idle_keys.h) is an error where its author, or an earlier one, wrote what makes
//          it idle, or nobody did. It is a note where a later author did, or the world or the
//          machine.
// Errors   ConfigError, for all problems at once: unknown and repeated keys, wrong types, values
//          out of range, text that is not JSON, files that cannot be read, idle keys, and the rules
//          of validate.h. Each names its key, the place (file, line and column, or --set), the
//          value, what is allowed, and the nearest known name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/config/config.h"
#include "runtime/config/validate.h"

namespace millrace {

struct ConfigText {
  std::string name;  // as it shall appear in messages: a path
  std::string text;
};

// What is thrown for a configuration that is wrong.
class ConfigError : public Error {
 public:
  ConfigError(const std::string& message, std::string pointer)
      : Error(ErrorCode::kConfig, message), pointer_(std::move(pointer)) {}
  // JSON pointer of the key of the first problem: "/optimizer/lr". "": it is about none.
  const std::string& pointer() const noexcept { return pointer_; }

 private:
  std::string pointer_;
};

struct LoadedConfig {
  Config config;
  std::optional<int64_t> world;               // as given in the context
  bool needs_data = true;                     // the same
  std::string merged;                         // the given keys only, as JSON text
  std::map<std::string, std::string> origin;  // every key: "default", "quickstart.json:12", "--set"
  std::vector<std::string> notes;             // idle keys that are no error: a line for each

  bool Given(std::string_view key) const;  // not by default
};

LoadedConfig LoadConfig(std::span<const std::string> files, std::span<const std::string> sets,
                        const ConfigContext& context);

LoadedConfig LoadConfigTexts(std::span<const ConfigText> texts, std::span<const std::string> sets,
                             const ConfigContext& context);

// Every key with its value, as JSON text. LoadConfigTexts of it gives `config` back; but of one
// that was loaded with notes it is an error, as the text is by one author.
std::string ConfigToJson(const Config& config);

// "/optimizer/lr" of "optimizer.lr".
std::string PointerOfKey(std::string_view path);

}  // namespace millrace
