// What tests of the checker ask of a plan.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "runtime/plan/check/checker.h"

namespace millrace::test {

inline constexpr Mesh kAlone{1, 1};

// The first violation's kind and message.
inline Violation First(const StepPlan& plan, Mesh mesh = kAlone, int accumulate = 1) {
  const Violations found = FindViolations(plan, mesh, accumulate);
  return found.empty() ? Violation{ViolationKind::kStructure, "none"} : found.front();
}

inline void RequireProved(const StepPlan& plan, Mesh mesh = kAlone, int accumulate = 1) {
  const Violations found = FindViolations(plan, mesh, accumulate);
  INFO(First(plan, mesh, accumulate).message);
  REQUIRE(found.empty());
}

inline void RequireViolation(const StepPlan& plan, ViolationKind kind, const std::string& text,
                             Mesh mesh = kAlone, int accumulate = 1) {
  const Violation first = First(plan, mesh, accumulate);
  INFO(first.message);
  REQUIRE_THAT(first.message, Catch::Matchers::Contains(text));
  REQUIRE(first.kind == kind);
}

}  // namespace millrace::test
