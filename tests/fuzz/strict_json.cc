// The JSON reader of all files that a run leaves and that come from elsewhere.
#include "runtime/data/strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

int Depth(const nlohmann::json& value) {
  int most = 0;
  if (value.is_structured())
    for (const nlohmann::json& inner : value) most = std::max(most, Depth(inner));
  return value.is_structured() ? most + 1 : 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kMostDepth = 4;
  const JsonOrigin origin{"fuzz.json", ErrorCode::kData};
  const fuzz::MemoryLimit limit(size);
  nlohmann::json json;
  const bool accepted = fuzz::Accepts({ErrorCode::kData}, [&] {
    json = ParseStrictJson({reinterpret_cast<const char*>(data), size}, kMostDepth, origin);
  });
  if (!accepted) return 0;
  FUZZ_REQUIRE(Depth(json) <= kMostDepth);
  const std::string text = json.dump();
  FUZZ_REQUIRE(ParseStrictJson(text, kMostDepth, origin).dump() == text);
  int64_t count = -1;
  if (fuzz::Accepts({ErrorCode::kData}, [&] { count = JsonCount(json, origin); })) {
    FUZZ_REQUIRE(count >= 0);
    FUZZ_REQUIRE(text == std::to_string(count));
  }
  fuzz::Accepts({ErrorCode::kData}, [&] { JsonCount(json, "n", origin); });
  fuzz::Accepts({ErrorCode::kData}, [&] { JsonString(json, "s", origin); });
  return 0;
}
