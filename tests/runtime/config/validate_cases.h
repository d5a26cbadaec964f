// Configurations that are accepted, or refused with one problem.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/config/validate.h"
#include "tests/runtime/config/load_support.h"

namespace millrace {

struct Case {
  std::vector<std::string> sets;
  const char* first_key;  // of the one problem; empty: accepted
  const char* part;       // of its text
  ConfigContext context = {};
};

inline void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::string given;
    for (const std::string& set : c.sets) given += " " + set;
    CAPTURE(given);
    const std::vector<std::string> problems = Problems({kSynthetic}, c.sets, c.context);
    for (const std::string& problem : problems) UNSCOPED_INFO(problem);
    if (std::string(c.first_key).empty()) {
      REQUIRE(problems.empty());
    } else {
      REQUIRE(problems.size() == 1);
      REQUIRE(problems[0].starts_with(std::string(c.first_key) + " "));
      REQUIRE(problems[0].find(c.part) != std::string::npos);
    }
  }
}

}  // namespace millrace
