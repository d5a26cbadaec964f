#include "runtime/config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/idle_keys.h"
#include "runtime/config/json_text.h"
#include "runtime/config/keys.h"
#include "runtime/config/nearest.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = 64 << 20;  // /dev/zero has no end

// Long values are cut: the message has to stay readable.
std::string Shortened(std::string_view text) {
  size_t size = std::min<size_t>(text.size(), 80);
  while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80)
    --size;  // whole characters
  std::string line(text.substr(0, size));
  std::replace(line.begin(), line.end(), '\n', ' ');
  return text.size() > line.size() ? line + "..." : line;
}

// All of `--set` are one author, later than every file; a default has none.
constexpr size_t kCommandLine = std::numeric_limits<size_t>::max();

// Where a value comes from: a file, or one `--set`.
struct Source {
  size_t index = 0;                // order of precedence
  std::string name;                // file name, or "--set a.b=c"
  const JsonText* text = nullptr;  // null for --set

  size_t Author() const { return text ? index : kCommandLine; }
  size_t KeyOffset(const std::string& pointer) const {
    const JsonMember* member = text ? text->Find(pointer) : nullptr;
    return member ? member->key : 0;
  }
  std::string At(size_t offset) const {  // "a.json:3:12"
    if (!text) return name;
    const TextPosition position = PositionOf(text->text(), offset);
    return fmt::format("{}:{}:{}", name, position.line, position.column);
  }
  std::string Origin(const std::string& pointer) const {  // "a.json:3"
    return text ? fmt::format("{}:{}", name, PositionOf(text->text(), KeyOffset(pointer)).line)
                : "--set";
  }
};

class Loader {
 public:
  explicit Loader(const ConfigContext& context) : context_(context) {}

  void AddFile(const std::string& path) {
    ConfigText file{path, {}};
    std::error_code error;
    std::ifstream stream;
    if (std::filesystem::is_directory(path, error)) {
      error = std::make_error_code(std::errc::is_a_directory);
    } else {
      errno = 0;
      stream.open(path, std::ios::binary);
      for (char c; file.text.size() <= kMaxFileBytes && stream.get(c);) file.text.push_back(c);
      if (file.text.size() > kMaxFileBytes)
        error = std::make_error_code(std::errc::file_too_large);
      else if (!stream.is_open() || stream.bad())
        error = std::error_code(errno, std::generic_category());
    }
    if (!error) return AddText(file);
    Problem(sources_++, 0, fmt::format("{}: cannot be read: {}", path, error.message()));
    is_partial_ = true;
  }

  void AddText(const ConfigText& given) {
    const JsonText text(given.text);
    const Source source{sources_++, given.name, &text};
    for (const JsonTextProblem& problem : text.problems())
      Problem(source.index, problem.offset,
              fmt::format("{}: {}", source.At(problem.offset), problem.text));
    if (text.root().is_object())
      AddObject(source, text.root(), "", "");
    else
      is_partial_ = true;
    if (!text.root().is_object() && text.problems().empty())
      Problem(source.index, 0, fmt::format("{}: must be an object of sections", source.At(0)));
  }

  void AddSet(const std::string& given) {
    const Source source{sources_++, "--set " + Shortened(given), nullptr};
    const size_t equals = given.find('=');
    if (equals == given.npos || equals == 0) {
      Problem(source.index, 0,
              fmt::format("{}: must have the form section.key=value", source.name));
      return;
    }
    const std::string path = given.substr(0, equals);
    const std::string_view value = std::string_view(given).substr(equals + 1);
    if (const Key* key = FindKey(path)) {
      AddValue(source, *key, JsonFromSet(*key, value), "", value);
    } else if (IsSection(path)) {
      AddSection(source, TryParseJson(value), path, "", value);
    } else {
      Unknown(source, path, "");
    }
  }

  LoadedConfig Finish() && {
    CompleteSections();
    LoadedConfig loaded;
    loaded.world = context_.world;
    json merged = json::object();
    for (const Key& key : Keys()) loaded.origin[key.path] = "default";
    for (const auto& [path, given] : given_) {
      if (const Key* key = FindKey(path); key && !failed_.contains(path))
        key->set(loaded.config, given.value);
      loaded.origin[path] = given.origin;
      std::string pointer = "/" + path;
      std::replace(pointer.begin(), pointer.end(), '.', '/');
      merged[json::json_pointer(pointer)] = ToJson(given.value);
    }
    loaded.merged = DumpJson(merged, {.indent = 2});
    CheckRules(loaded);
    ThrowIfAny();
    return loaded;
  }

 private:
  struct Given {
    KeyValue value;  // null for a nullable section
    std::string origin, place;
    size_t author = 0;
  };
  struct Listed {
    size_t source, offset;
    std::string text;
  };

  void Problem(size_t source, size_t offset, std::string text) {
    problems_.push_back({source, offset, std::move(text)});
  }

  void AddObject(const Source& source, const json& object, const std::string& section,
                 const std::string& pointer) {
    for (const auto& [name, value] : object.items()) {
      const std::string path = section.empty() ? name : section + '.' + name;
      const std::string child = PointerTo(pointer, name);
      const Key* key = FindKey(path);
      if (section.empty() && name == "$schema") continue;
      if (name.find('.') != name.npos && (key || IsSection(path)))
        Problem(
            source.index, source.KeyOffset(child),
            fmt::format("{}: \"{}\": keys with dots are for --set; in a file, write nested objects",
                        source.At(source.KeyOffset(child)), name));
      else if (key)
        AddValue(source, *key, value, child, Written(source, child, value));
      else if (IsSection(path))
        AddSection(source, value, path, child, Written(source, child, value));
      else
        Unknown(source, path, child);
    }
  }

  void AddSection(const Source& source, const json& value, const std::string& path,
                  const std::string& pointer, std::string_view written) {
    const size_t offset = source.KeyOffset(pointer);
    const bool nullable = IsNullableSection(path);
    if (value.is_object()) {
      if (nullable) {
        given_.erase(path);  // an earlier null
        objects_[path] = {{}, source.Origin(pointer), source.At(offset), source.Author()};
      }
      AddObject(source, value, path, pointer);
    } else if (value.is_null() && nullable) {
      std::erase_if(given_, [&](const auto& item) { return item.first.starts_with(path + '.'); });
      objects_.erase(path);
      given_[path] = {{}, source.Origin(pointer), source.At(offset), source.Author()};
    } else {
      Problem(source.index, offset,
              fmt::format("{}: {} = {}: must be an object{}", source.At(offset), path,
                          Shortened(written), nullable ? ", or null" : ""));
      failed_.insert(path);
    }
  }

  void AddValue(const Source& source, const Key& key, const json& value, const std::string& pointer,
                std::string_view written) {
    const size_t offset = source.KeyOffset(pointer);
    std::string problem;
    const std::optional<KeyValue> converted = Convert(key, value, &problem);
    if (!converted) {
      Problem(
          source.index, offset,
          fmt::format("{}: {} = {}: {}", source.At(offset), key.path, Shortened(written), problem));
      failed_.insert(key.path);
      return;
    }
    const std::string section(key.section());
    if (IsNullableSection(section)) {
      given_.erase(section);
      objects_.try_emplace(section,
                           Given{{}, source.Origin(pointer), source.At(offset), source.Author()});
    }
    failed_.erase(key.path);
    given_[key.path] = {*converted, source.Origin(pointer), source.At(offset), source.Author()};
  }

  void Unknown(const Source& source, const std::string& path, const std::string& pointer) {
    const size_t offset = source.KeyOffset(pointer);
    const std::string nearest = NearestKey(path);
    if (!nearest.empty()) failed_.insert(nearest);  // its value is probably the one given here
    Problem(source.index, offset,
            fmt::format("{}: {}: unknown key{}", source.At(offset), Shortened(path),
                        nearest.empty() ? "; `millrace config schema` lists them"
                                        : "; did you mean " + nearest + "?"));
  }

  // The value as the user wrote it.
  static std::string Written(const Source& source, const std::string& pointer, const json& value) {
    const JsonMember* member = source.text ? source.text->Find(pointer) : nullptr;
    return member ? source.text->text().substr(member->value_begin,
                                               member->value_end - member->value_begin)
                  : DumpJson(value);
  }

  // A nullable section that is there must have all of its keys.
  void CompleteSections() {
    for (const Key& key : Keys()) {
      const auto section = objects_.find(std::string(key.section()));
      if (!key.required || section == objects_.end() || given_.contains(key.path) ||
          failed_.contains(key.path))
        continue;
      Problem(sources_, 0,
              fmt::format("{}: {}: missing; must be {}", section->second.place, key.path,
                          Allowed(key)));
      failed_.insert(key.path);
    }
  }

  void CheckRules(LoadedConfig& loaded) {
    if (is_partial_) return;  // what an unreadable file said would have counted
    for (const ConfigProblem& problem : Validate(loaded.config, context_))
      if (AreKnown(problem.keys, loaded.config))
        Problem(sources_ + 1, 0,
                fmt::format("{}: {}", Values(problem.keys, loaded.config), problem.text));
    CheckIdleKeys(loaded);
  }

  // A key that is idle for several reasons is said once: as an error if one of them is.
  void CheckIdleKeys(LoadedConfig& loaded) {
    std::vector<IdleKey> idle = FindIdleKeys(loaded.config, context_);
    const auto notes = std::stable_partition(
        idle.begin(), idle.end(), [&](const IdleKey& key) { return !IsDecidedLater(key); });
    std::set<std::string> said;
    for (auto key = idle.begin(); key != idle.end(); ++key) {
      std::vector<std::string> keys = {key->key};
      keys.insert(keys.end(), key->causes.begin(), key->causes.end());
      if (!AreKnown(keys, loaded.config) || !said.insert(key->key).second) continue;
      const std::string line = fmt::format("{}: {}, so {} has no effect",
                                           Values(keys, loaded.config), key->reason, key->key);
      if (key < notes)
        Problem(sources_ + 1, 0, line + "; leave it out");
      else
        loaded.notes.push_back(line);
    }
  }

  // Whether somebody made the key idle who came after its author.
  bool IsDecidedLater(const IdleKey& key) const {
    const Given* own = FindGiven(key.key);
    if (key.by != IdleBy::kKeys || !own) return true;
    return std::any_of(key.causes.begin(), key.causes.end(), [&](const std::string& cause) {
      const Given* given = FindGiven(cause);
      return given && given->author > own->author;
    });
  }

  // Not so where a key is wrong already, or will be filled by a folder to start from: then a rule
  // proves nothing.
  bool AreKnown(const std::vector<std::string>& keys, const Config& config) const {
    return std::none_of(keys.begin(), keys.end(), [&](const std::string& path) {
      const bool comes_later =
          config.model.init_from && path.starts_with("model.") && !FindGiven(path);
      return comes_later || HasFailed(path);
    });
  }

  // "optimizer.lr = 0.1 (run.json:3:5), train.steps = 1000 (default)"
  std::string Values(const std::vector<std::string>& keys, const Config& config) const {
    std::vector<std::string> values;
    for (const std::string& path : keys) {
      const Given* given = FindGiven(path);
      const std::string place = given ? given->place : "default";
      const Key* key = FindKey(path);
      values.push_back(
          key ? fmt::format("{} = {} ({})", path, DumpJson(ToJson(key->get(config))), place)
              : fmt::format("{} ({})", path, place));
    }
    return fmt::format("{}", fmt::join(values, ", "));
  }

  bool HasFailed(const std::string& path) const {  // it, or the section around it
    return std::any_of(failed_.begin(), failed_.end(), [&](const std::string& failed) {
      return path == failed || path.starts_with(failed + '.');
    });
  }
  const Given* FindGiven(const std::string& path) const {
    for (const auto* given : {&given_, &objects_})
      if (const auto it = given->find(path); it != given->end()) return &it->second;
    return nullptr;
  }

  void ThrowIfAny() {
    if (problems_.empty()) return;
    std::stable_sort(problems_.begin(), problems_.end(), [](const Listed& a, const Listed& b) {
      return std::tie(a.source, a.offset) < std::tie(b.source, b.offset);
    });
    std::string message = fmt::format("{} problem{} in the configuration:", problems_.size(),
                                      problems_.size() == 1 ? "" : "s");
    for (const Listed& problem : problems_) message += "\n  " + problem.text;
    throw Error(ErrorCode::kConfig, message);
  }

  const ConfigContext& context_;
  size_t sources_ = 0;
  std::map<std::string, Given> given_;    // values of keys, and explicit nulls of sections
  std::map<std::string, Given> objects_;  // nullable sections that are there
  std::set<std::string> failed_;          // keys whose value is not known
  std::vector<Listed> problems_;
  bool is_partial_ = false;  // a file could not be read
};

}  // namespace

bool LoadedConfig::Given(std::string_view key) const {
  const auto it = origin.find(std::string(key));
  return it != origin.end() && it->second != "default";
}

LoadedConfig LoadConfig(std::span<const std::string> files, std::span<const std::string> sets,
                        const ConfigContext& context) {
  Loader loader(context);
  for (const std::string& file : files) loader.AddFile(file);
  for (const std::string& set : sets) loader.AddSet(set);
  return std::move(loader).Finish();
}

LoadedConfig LoadConfigTexts(std::span<const ConfigText> texts, std::span<const std::string> sets,
                             const ConfigContext& context) {
  Loader loader(context);
  for (const ConfigText& text : texts) loader.AddText(text);
  for (const std::string& set : sets) loader.AddSet(set);
  return std::move(loader).Finish();
}

std::string ConfigToJson(const Config& config) {
  json all = json::object();
  for (const Key& key : Keys()) {
    const bool is_null_section = key.required && !config.model.rope_scaling;
    std::string pointer = "/" + (is_null_section ? std::string(key.section()) : key.path);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    all[json::json_pointer(pointer)] = is_null_section ? json() : ToJson(key.get(config));
  }
  return DumpJson(all, {.indent = 2}) + "\n";
}

}  // namespace millrace
