#include "runtime/infer/stop_strings.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// The text up to the stop that ends first; all of it without one.
std::string CutOff(const std::string& text, const std::vector<std::string>& stops, bool& stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) {
      stopped = true;
      return text.substr(0, end - longest);
    }
  }
  stopped = false;
  return text;
}

TEST_CASE("a text ends before its first stop string, whatever pieces it comes in", "[infer]") {
  std::mt19937 chance(3);
  const auto word = [&](size_t length) {
    std::string s;
    while (s.size() < length) s += static_cast<char>('a' + chance() % 2);
    return s;
  };
  int stops_seen = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<std::string> stops;
    for (size_t n = chance() % 4; n > 0; --n) stops.push_back(word(1 + chance() % 7));
    const std::string text = word(chance() % 30);
    StopStrings cut(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + chance() % 5;
      shown += cut.Add(text.substr(at, n));
      at += n;
      if (stops.empty()) REQUIRE(shown == text.substr(0, at));  // nothing is held back for nothing
    }
    shown += cut.End();
    bool stopped = false;
    REQUIRE(shown == CutOff(text, stops, stopped));
    REQUIRE(cut.stopped() == stopped);
    stops_seen += stopped;
  }
  CHECK(stops_seen > 500);
  CHECK_THROWS_AS(StopStrings({"a", ""}), Error);
}

TEST_CASE("what may begin a stop string is shown once it is known not to", "[infer]") {
  StopStrings cut({"\n\nQ"});
  CHECK(cut.Add("A\n") == "A");
  CHECK(cut.Add("\n") == "");
  CHECK(cut.Add("\n") == "\n");  // two may still begin it
  CHECK(cut.Add("B") == "\n\nB");
  CHECK(cut.Add("\n\nQ: no") == "");
  CHECK(cut.stopped());
  CHECK(cut.Add("more") == "");
  CHECK(cut.End() == "");
}

}  // namespace
}  // namespace millrace
