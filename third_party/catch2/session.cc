#include "third_party/catch2/session.h"

#include <cstdio>
#include <set>

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

namespace millrace {
namespace {

struct Skips {
  std::string current;          // the case that runs
  std::set<std::string> lines;  // "NAME: REASON"; a case that is entered again says it once
  uint64_t assertions = 0;
};

Skips& TheSkips() {
  static Skips skips;
  return skips;
}

struct SkipListener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    TheSkips().current = info.name;
  }
  void testRunEnded(const Catch::TestRunStats& stats) override {
    TheSkips().assertions = stats.totals.assertions.total();
  }
};
CATCH_REGISTER_LISTENER(SkipListener)

}  // namespace

int RunCatchSession(int argc, char** argv) {
  const int failures = Catch::Session().run(argc, argv);
  const Skips& skips = TheSkips();
  for (const std::string& line : skips.lines) std::printf("skipped case: %s\n", line.c_str());
  if (!skips.lines.empty() && skips.assertions == 0) std::printf("skipped all\n");
  std::fflush(stdout);
  return failures;
}

void SkipCase(const std::string& reason) {
  TheSkips().lines.insert(TheSkips().current + ": " + reason);
}

}  // namespace millrace
