#include "runtime/record/report/recorded_timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int64_t kLargest = int64_t{64} << 20;
constexpr int kTraceDepth = 8;
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr size_t kLongestName = 1000;
constexpr double kLatest = 1e15;  // us

double Micros(const json& event, const char* key, const JsonOrigin& origin) {
  const json& value = JsonField(event, key, origin);
  const double us = value.is_number() ? value.get<double>() : -1;
  MR_REQUIRE(origin.code, us >= 0 && us <= kLatest, "{}: \"{}\" is not a time", origin.name, key);
  return us;
}

std::string Label(const json& event, const char* key, const JsonOrigin& origin) {
  std::string text = JsonString(event, key, origin);
  MR_REQUIRE(origin.code, text.size() <= kLongestName, "{}: \"{}\" has {} bytes", origin.name, key,
             text.size());
  return text;
}

StepPicture OneBody() {
  StepPicture step;
  step.bodies.push_back({"step", 0, {}});
  step.schedule.push_back({0, 0, {}, {}});
  return step;
}

}  // namespace

RecordedTimeline ParseTimeline(std::string_view text, const std::string& path) {
  const JsonOrigin file{path, ErrorCode::kData};
  const json all = ParseStrictJson(text, kTraceDepth, file);
  const JsonOrigin about{path + ": otherData", ErrorCode::kData};
  const json& other = JsonField(all, "otherData", file);
  RecordedTimeline line;
  line.plan_hash = JsonString(other, "plan_hash", about);
  line.device = JsonString(other, "device", about);
  line.ranks = JsonCount(other, "ranks", about);
  MR_REQUIRE(ErrorCode::kData, line.ranks >= 1 && line.ranks <= kMostRanks, "{}: {} ranks",
             about.name, line.ranks);
  if (other.contains("step")) line.step = JsonCount(other, "step", about);
  line.how = JsonString(JsonField(other, "trace", about), "step", about);

  const json& events = JsonField(all, "traceEvents", file);
  MR_REQUIRE(ErrorCode::kData, events.is_array(), "{}: \"traceEvents\" is not an array", path);
  double first = std::numeric_limits<double>::infinity();  // us
  for (size_t i = 0; i < events.size(); ++i) {
    const json& event = events[i];
    const JsonOrigin origin{path + ": traceEvents[" + std::to_string(i) + "]", ErrorCode::kData};
    const std::string phase = JsonString(event, "ph", origin);
    if (phase == "M") continue;
    MR_REQUIRE(ErrorCode::kData, phase == "X", "{}: neither a name nor an op", origin.name);
    const int64_t rank = JsonCount(event, "pid", origin), stream = JsonCount(event, "tid", origin);
    MR_REQUIRE(ErrorCode::kData, rank < line.ranks && stream < kStreams,
               "{}: no rank {}, stream {}", origin.name, rank, stream);
    const double begin = Micros(event, "ts", origin), us = Micros(event, "dur", origin);
    StepPicture& step = line.steps.try_emplace(rank, OneBody()).first->second;
    step.bodies[0].ops.push_back({Label(event, "cat", origin),
                                  Label(event, "name", origin),
                                  static_cast<StreamId>(stream),
                                  us / 1e6,
                                  0,
                                  0,
                                  0,
                                  {},
                                  {}});
    step.schedule[0].times.insert(step.schedule[0].times.end(), {begin, begin + us});
    first = std::min(first, begin);
  }
  for (auto& [rank, step] : line.steps)
    for (double& time : step.schedule[0].times) time = (time - first) / 1e6;
  return line;
}

RecordedTimeline ReadTimeline(const std::string& path) {
  return ParseTimeline(ReadWholeFile(path, kLargest, ErrorCode::kData), path);
}

}  // namespace millrace
