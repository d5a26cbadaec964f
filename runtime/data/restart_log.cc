#include "runtime/data/restart_log.h"

#include <fmt/chrono.h>

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/input_file.h"
#include "runtime/data/jsonl_appender.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargest = int64_t{64} << 20;

std::string PathIn(const std::string& run_dir) { return run_dir + "/restarts.jsonl"; }

void Append(const std::string& run_dir, const Json& line) {
  JsonlAppender lines(PathIn(run_dir));
  lines.Append(DumpJson(line, {.replace = true}));
}

std::string TextOf(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<double> NumberOf(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<int64_t> CountOf(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  if (found->is_number_unsigned() && !std::in_range<int64_t>(found->get<uint64_t>()))
    return std::nullopt;
  return found->get<int64_t>();
}

}  // namespace

std::string TimeNowUtc() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

void LogFailure(const std::string& run_dir, const Failure& failure) {
  Append(run_dir, {{"event", "failed"},
                   {"time", failure.time},
                   {"reason", failure.reason},
                   {"exit_code", failure.exit_code ? Json(*failure.exit_code) : Json(nullptr)},
                   {"step", failure.step},
                   {"checkpoint", failure.checkpoint},
                   {"restarts", failure.restarts}});
}

void LogResumed(const std::string& run_dir, int64_t step, double seconds) {
  Append(run_dir,
         {{"event", "resumed"}, {"time", TimeNowUtc()}, {"step", step}, {"seconds", seconds}});
}

std::vector<RecordedFailure> ParseRestarts(std::string_view text) {
  std::vector<RecordedFailure> all;
  for (size_t newline; (newline = text.find('\n')) != text.npos; text.remove_prefix(newline + 1)) {
    // Not an ordered object, which takes quadratic time for a line of many keys.
    const auto line = TryParseJson(text.substr(0, newline));
    if (!line.is_object()) continue;
    const std::string event = TextOf(line, "event");
    if (event == "failed") {
      RecordedFailure recorded;
      recorded.failure.time = TextOf(line, "time");
      recorded.failure.reason = TextOf(line, "reason");
      if (const auto code = CountOf(line, "exit_code"); code && std::in_range<int>(*code))
        recorded.failure.exit_code = static_cast<int>(*code);
      recorded.failure.step = CountOf(line, "step").value_or(0);
      recorded.failure.checkpoint = CountOf(line, "checkpoint").value_or(0);
      const auto restarts = line.find("restarts");
      recorded.failure.restarts = restarts == line.end() || *restarts != false;
      all.push_back(std::move(recorded));
    } else if (event == "resumed" && !all.empty() && !all.back().resumed_step) {
      all.back().resumed_step = CountOf(line, "step");
      all.back().seconds = NumberOf(line, "seconds");
    }
  }
  return all;
}

std::vector<RecordedFailure> ReadRestarts(const std::string& run_dir) {
  std::error_code ignored;
  if (!std::filesystem::exists(PathIn(run_dir), ignored)) return {};
  return ParseRestarts(ReadWholeFile(PathIn(run_dir), kLargest, ErrorCode::kData));
}

}  // namespace millrace
