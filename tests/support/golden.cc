#include "tests/support/golden.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace millrace::test {

void RequireGolden(const std::string& path, const std::string& actual) {
  if (const char* root = std::getenv("MILLRACE_UPDATE_GOLDEN")) {
    std::ofstream(std::string(root) + "/" + path, std::ios::binary) << actual;
    FAIL_CHECK("wrote " << path
                        << ": read the difference, then run without MILLRACE_UPDATE_GOLDEN");
    return;
  }
  std::ifstream file(path, std::ios::binary);
  INFO("golden file " << path);
  REQUIRE(file.good());
  std::istringstream lines(actual);
  std::string want, have;
  for (int number = 1;; ++number) {
    const bool more_wanted = static_cast<bool>(std::getline(file, want));
    const bool more_present = static_cast<bool>(std::getline(lines, have));
    if (!more_wanted && !more_present) break;
    INFO("line " << number);
    REQUIRE((more_present ? have : "<end of text>") == (more_wanted ? want : "<end of file>"));
  }
}

}  // namespace millrace::test
