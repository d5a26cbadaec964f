#include "runtime/record/run_history.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/document.h"
#include "runtime/config/keys.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"
#include "runtime/record/run_environment.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargestFile = int64_t{16} << 20;
constexpr int kHistoryDepth = 8;

std::string PathOf(const std::string& run_dir) { return run_dir + "/config.json"; }

std::map<std::string, RecordedValue> Changed(const RecordedCall& before, const RecordedCall& now) {
  std::map<std::string, RecordedValue> changed;
  for (const auto& [key, recorded] : now.keys) {
    const auto old = before.keys.find(key);
    if (old == before.keys.end() || old->second.value != recorded.value) changed[key] = recorded;
  }
  return changed;
}

// What a call ran on, without when it began and how it was asked for.
RunEnvironment Surroundings(const RecordedCall& call) {
  RunEnvironment entries = call.environment;
  std::erase_if(entries,
                [](const auto& e) { return e.first == kStartEntry || e.first == kCommandEntry; });
  return entries;
}

bool SameBut(const RecordedCall& a, const RecordedCall& b) {
  return a.world == b.world && a.backend == b.backend && a.plan_stages == b.plan_stages &&
         Surroundings(a) == Surroundings(b) && Changed(a, b).empty();
}

Json CallJson(const RecordedCall& call, const std::map<std::string, RecordedValue>& keys) {
  Json values = Json::object(), stages = Json::object();
  for (const auto& [key, recorded] : keys)
    values[key] = {{"value", ParseOrderedJson(recorded.value)}, {"origin", recorded.origin}};
  for (const std::string_view name : kPlanStageNames)
    if (const auto hash = call.plan_stages.find(std::string(name)); hash != call.plan_stages.end())
      stages[hash->first] = hash->second;
  Json object = {{"step", call.step},
                 {"world", call.world},
                 {"backend", call.backend},
                 {"keys", values},
                 {"plan_stages", stages}};
  for (const auto& [name, value] : call.environment)
    object["environment"].push_back({{"name", name}, {"value", value}});
  return object;
}

RecordedCall CallFrom(const nlohmann::json& object, const JsonOrigin& origin) {
  RecordedCall call;
  call.step = JsonCount(object, "step", origin);
  call.world = JsonCount(object, "world", origin);
  call.backend = JsonString(object, "backend", origin);
  for (const auto& [key, recorded] : JsonField(object, "keys", origin).items())
    call.keys[key] = {DumpJson(JsonField(recorded, "value", origin)),
                      JsonString(recorded, "origin", origin)};
  const nlohmann::json& stages = JsonField(object, "plan_stages", origin);
  for (const auto& [name, hash] : stages.items())
    call.plan_stages[name] = JsonString(stages, name, origin);
  if (!object.contains("environment")) return call;
  const nlohmann::json& environment = JsonField(object, "environment", origin);
  MR_REQUIRE(ErrorCode::kData, environment.is_array(),
             "{}: \"environment\" must be an array, got {}", origin.name, environment.type_name());
  for (const nlohmann::json& entry : environment)
    call.environment.emplace_back(JsonString(entry, "name", origin),
                                  JsonString(entry, "value", origin));
  return call;
}

}  // namespace

RecordedCall DescribeCall(const Config& config, const std::map<std::string, std::string>& origin,
                          const std::vector<PlanStage>& stages, const CallStart& start) {
  RecordedCall call;
  call.step = start.step;
  call.world = start.world;
  call.backend = start.backend;
  for (const Key& key : Keys()) {
    // Keys of a null section have no values; the section itself stands for them.
    const bool is_null_section = key.required && !config.model.rope_scaling;
    const std::string path = is_null_section ? std::string(key.section()) : key.path;
    const auto from = origin.find(path);
    call.keys[path] = {
        is_null_section ? "null" : DumpJson(ToJson(ValueInForce(key, config, call.world))),
        from == origin.end() ? "default" : from->second};
  }
  for (const PlanStage& stage : stages) call.plan_stages[stage.name] = stage.Hash();
  return call;
}

RunHistory WithCall(RunHistory history, const RecordedCall& now) {
  std::erase_if(history, [&](const RecordedCall& call) { return call.step >= now.step; });
  if (history.empty() || !SameBut(history.back(), now)) history.push_back(now);
  return history;
}

std::string RunHistoryJson(const RunHistory& history) {
  MR_CHECK(!history.empty(), "a run's history has a first call");
  Json all = CallJson(history.front(), history.front().keys);
  all["resumed"] = Json::array();
  for (size_t i = 1; i < history.size(); ++i)
    all["resumed"].push_back(CallJson(history[i], Changed(history[i - 1], history[i])));
  return DumpJson(all, {.indent = 2, .replace = true}) + "\n";
}

RunHistory ParseRunHistory(std::string_view text, const std::string& path, size_t most_values) {
  const JsonOrigin origin{path, ErrorCode::kData};
  const nlohmann::json all = ParseStrictJson(text, kHistoryDepth, origin);
  RunHistory history = {CallFrom(all, origin)};
  const auto held = [](const RecordedCall& call) {
    return call.keys.size() + call.environment.size();
  };
  size_t values = held(history.back());
  const nlohmann::json& resumed = JsonField(all, "resumed", origin);
  MR_REQUIRE(ErrorCode::kData, resumed.is_array(), "{}: \"resumed\" must be an array, got {}", path,
             resumed.type_name());
  for (const nlohmann::json& object : resumed) {
    RecordedCall call = CallFrom(object, origin);
    MR_REQUIRE(ErrorCode::kData, call.step > history.back().step,
               "{}: \"resumed\" goes on from step {} after step {}; steps must ascend", path,
               call.step, history.back().step);
    std::map<std::string, RecordedValue> changed = std::move(call.keys);
    call.keys = history.back().keys;
    for (auto& [key, recorded] : changed) call.keys[key] = std::move(recorded);
    MR_REQUIRE(ErrorCode::kData, (values += held(call)) <= most_values,
               "{}: the calls up to step {} have more than {} values together", path, call.step,
               most_values);
    history.push_back(std::move(call));
  }
  return history;
}

std::optional<RunHistory> ReadRunHistory(const std::string& run_dir) {
  std::error_code ignored;
  const std::string path = PathOf(run_dir);
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return ParseRunHistory(ReadWholeFile(path, kLargestFile, ErrorCode::kData), path);
}

bool HasRunHistory(const std::string& run_dir) {
  try {
    return ReadRunHistory(run_dir).has_value();
  } catch (const Error&) {
    return false;
  }
}

std::string RecordCall(const std::string& run_dir, const RecordedCall& now, FileSystem& files) {
  std::optional<RunHistory> old;
  try {
    old = ReadRunHistory(run_dir);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kData) throw;
    return fmt::format(
        "{}; it is no record of this run, is left as it is, and the configuration is not recorded",
        error.what());
  }
  const std::string text = RunHistoryJson(WithCall(old.value_or(RunHistory()), now));
  if (!old || text != RunHistoryJson(*old)) WriteFileAtomically(files, PathOf(run_dir), text);
  return "";
}

Config ConfigOf(const RecordedCall& call) {
  Config config;
  for (const auto& [path, recorded] : call.keys) {
    if (IsNullableSection(path)) continue;  // null, as it is by default
    const Key* key = FindKey(path);
    MR_REQUIRE(ErrorCode::kData, key != nullptr, "{}: this version has no such key", path);
    std::string problem;
    const std::optional<KeyValue> value = Convert(*key, ParseJson(recorded.value), &problem);
    MR_REQUIRE(ErrorCode::kData, value.has_value(), "{} = {}: {}", path, recorded.value, problem);
    key->set(config, *value);
  }
  return config;
}

}  // namespace millrace
