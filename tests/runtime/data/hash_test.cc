#include "runtime/data/hash.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string Pattern(int64_t n) {
  std::string text(n, '\0');
  for (int64_t i = 0; i < n; ++i) text[i] = static_cast<char>(i * 131 + i / 251);
  return text;
}

TEST_CASE("the hash is XXH3-128 in xxhsum's notation", "[data][hash]") {
  REQUIRE(Hash128("") == "99aa06d3014798d86001c324468d497f");  // printf '' | xxhsum -H2
  REQUIRE(Hash128("abc") == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("a streamed hash equals the hash of the whole, however it is cut", "[data][hash]") {
  const int64_t n = GENERATE(0, 1, 16, 17, 128, 240, 241, 1024, 5000);
  const std::string text = Pattern(n);
  for (const int64_t piece : {1, 3, 64, 255, 4096}) {
    Hasher128 hasher;
    hasher.Update("forgotten");
    hasher.Reset();
    for (int64_t i = 0; i < n; i += piece) {
      hasher.Update(text.substr(i, piece));
      hasher.Hex();  // reading a prefix's hash changes nothing
    }
    REQUIRE(hasher.Hex() == Hash128(text));
  }
}

TEST_CASE("a hasher goes on where another one was saved", "[data][hash]") {
  const int64_t n = GENERATE(0, 1, 16, 240, 241, 255, 256, 257, 1024, 5000);
  const std::string text = Pattern(n);
  for (const int64_t cut : {int64_t{0}, n / 3, n / 2, n - 1, n}) {
    if (cut < 0) continue;
    Hasher128 first, second;
    first.Update(text.substr(0, cut));
    second.Update("forgotten");
    const std::string saved = first.Save();
    first.Update("of no matter");
    second.Restore(saved);
    second.Update(text.substr(cut));
    REQUIRE(second.Hex() == Hash128(text));
    REQUIRE(saved.size() == Hasher128().Save().size());
  }
  REQUIRE_THROWS_AS(Hasher128().Restore(""), Error);
  REQUIRE_THROWS_AS(Hasher128().Restore(Hasher128().Save() + "x"), Error);
}

TEST_CASE("any flipped bit changes the hash", "[data][hash]") {
  std::string text = Pattern(300);
  const std::string whole = Hash128(text);
  for (char& c : text) {
    for (int bit = 0; bit < 8; ++bit) {
      c = static_cast<char>(c ^ (1 << bit));
      if (Hash128(text) == whole) FAIL("unchanged");
      c = static_cast<char>(c ^ (1 << bit));
    }
  }
  REQUIRE(Hash128(text) == whole);
}

TEST_CASE("a negative length is our own mistake", "[data][hash]") {
  REQUIRE_THROWS_AS(Hash128("x", -1), Error);
  REQUIRE_THROWS_AS(Hasher128().Update("x", -1), Error);
}

}  // namespace
}  // namespace millrace
