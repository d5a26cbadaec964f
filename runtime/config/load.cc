#include "runtime/config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/given_rules.h"
#include "runtime/config/given_values.h"
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
    problems_.Add(sources_++, 0, "", fmt::format("{}: cannot be read: {}", path, error.message()));
    given_.is_partial = true;
  }

  void AddText(const ConfigText& given) {
    const JsonText text(given.text);
    const Source source{sources_++, given.name, &text};
    for (const JsonTextProblem& problem : text.problems())
      problems_.Add(source.index, problem.offset, "",
                    fmt::format("{}: {}", source.At(problem.offset), problem.text));
    if (text.root().is_object())
      AddObject(source, text.root(), "", "");
    else
      given_.is_partial = true;
    if (!text.root().is_object() && text.problems().empty())
      problems_.Add(source.index, 0, "",
                    fmt::format("{}: must be an object of sections", source.At(0)));
  }

  void AddSet(const std::string& given) {
    const Source source{sources_++, "--set " + Shortened(given), nullptr};
    const size_t equals = given.find('=');
    if (equals == given.npos || equals == 0) {
      problems_.Add(source.index, 0, "",
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
    RequireWholeSections(given_, sources_, problems_);
    LoadedConfig loaded;
    loaded.world = context_.world;
    loaded.needs_data = context_.needs_data;
    json merged = json::object();
    for (const Key& key : Keys()) loaded.origin[key.path] = "default";
    for (const auto& [path, given] : given_.keys) {
      if (const Key* key = FindKey(path); key && !given_.failed.contains(path))
        key->set(loaded.config, given.value);
      loaded.origin[path] = given.origin;
      merged[json::json_pointer(PointerOfKey(path))] = ToJson(given.value);
    }
    loaded.merged = DumpJson(merged, {.indent = 2});
    CheckRules(given_, context_, sources_ + 1, loaded, problems_);
    problems_.ThrowIfAny();
    return loaded;
  }

 private:
  void AddObject(const Source& source, const json& object, const std::string& section,
                 const std::string& pointer) {
    for (const auto& [name, value] : object.items()) {
      const std::string path = section.empty() ? name : section + '.' + name;
      const std::string child = PointerTo(pointer, name);
      const Key* key = FindKey(path);
      if (section.empty() && name == "$schema") continue;
      if (name.find('.') != name.npos && (key || IsSection(path)))
        problems_.Add(
            source.index, source.KeyOffset(child), path,
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
        given_.keys.erase(path);  // an earlier null
        given_.objects[path] = {{}, source.Origin(pointer), source.At(offset), source.Author()};
      }
      AddObject(source, value, path, pointer);
    } else if (value.is_null() && nullable) {
      std::erase_if(given_.keys,
                    [&](const auto& item) { return item.first.starts_with(path + '.'); });
      given_.objects.erase(path);
      given_.keys[path] = {{}, source.Origin(pointer), source.At(offset), source.Author()};
    } else {
      problems_.Add(source.index, offset, path,
                    fmt::format("{}: {} = {}: must be an object{}", source.At(offset), path,
                                Shortened(written), nullable ? ", or null" : ""));
      given_.failed.insert(path);
    }
  }

  void AddValue(const Source& source, const Key& key, const json& value, const std::string& pointer,
                std::string_view written) {
    const size_t offset = source.KeyOffset(pointer);
    std::string problem;
    const std::optional<KeyValue> converted = Convert(key, value, &problem);
    if (!converted) {
      problems_.Add(
          source.index, offset, key.path,
          fmt::format("{}: {} = {}: {}", source.At(offset), key.path, Shortened(written), problem));
      given_.failed.insert(key.path);
      return;
    }
    const std::string section(key.section());
    if (IsNullableSection(section)) {
      given_.keys.erase(section);
      given_.objects.try_emplace(
          section, GivenValue{{}, source.Origin(pointer), source.At(offset), source.Author()});
    }
    given_.failed.erase(key.path);
    given_.keys[key.path] = {*converted, source.Origin(pointer), source.At(offset),
                             source.Author()};
  }

  void Unknown(const Source& source, const std::string& path, const std::string& pointer) {
    const size_t offset = source.KeyOffset(pointer);
    const std::string nearest = NearestKey(path);
    if (!nearest.empty())
      given_.failed.insert(nearest);  // its value is probably the one given here
    problems_.Add(source.index, offset, path,
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

  const ConfigContext& context_;
  size_t sources_ = 0;
  GivenValues given_;
  ProblemList problems_;
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

std::string PointerOfKey(std::string_view path) {
  std::string pointer = "/" + std::string(path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return pointer;
}

std::string ConfigToJson(const Config& config) {
  json all = json::object();
  for (const Key& key : Keys()) {
    const bool is_null_section = key.required && !config.model.rope_scaling;
    const std::string pointer =
        PointerOfKey(is_null_section ? std::string(key.section()) : key.path);
    all[json::json_pointer(pointer)] = is_null_section ? json() : ToJson(key.get(config));
  }
  return DumpJson(all, {.indent = 2}) + "\n";
}

}  // namespace millrace
