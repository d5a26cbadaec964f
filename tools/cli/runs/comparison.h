// What `millrace compare` says of two runs, as JSON and as text.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/record/compare_runs.h"

namespace millrace {

struct ComparedSide {
  std::string dir;
  RecordedRun run;
  std::map<std::string, std::string> stage_texts;  // what could be planned again
};

// Of a stage's texts; line 0: they cannot both be shown.
LineDifference FirstDifference(const std::string& stage, const ComparedSide& a,
                               const ComparedSide& b);

nlohmann::ordered_json ComparisonJson(const RunComparison& c, const ComparedSide& a,
                                      const ComparedSide& b);
std::string ComparisonText(const RunComparison& c, const ComparedSide& a, const ComparedSide& b);

}  // namespace millrace
