// testdata/golden.json: what PyPI's tokenizers gave for variants of testdata/tokenizer.json
// (make_golden.py).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/data/input_file.h"

namespace millrace::text {

inline nlohmann::json ReadTestData(const std::string& name) {
  return nlohmann::json::parse(
      ReadWholeFile("tests/runtime/text/testdata/" + name, int64_t{1} << 20, ErrorCode::kData));
}

struct GoldenCase {
  std::string text;
  std::vector<int32_t> tokens;  // with special tokens, and those of the template
  std::vector<int32_t> plain;   // special tokens as text, no template
};

struct GoldenVariant {
  std::string name;
  std::string json;  // the tokenizer
  std::vector<GoldenCase> cases;
  std::string code_points;  // hash of the ids of CodePointTexts, or empty
};

inline std::vector<GoldenVariant> ReadGolden() {
  const nlohmann::json base = ReadTestData("tokenizer.json"), golden = ReadTestData("golden.json");
  std::vector<GoldenVariant> variants;
  for (const auto& [name, variant] : golden["variants"].items()) {
    nlohmann::json document = base;
    document.merge_patch(variant["patch"]);
    variants.push_back({.name = name,
                        .json = document.dump(),
                        .cases = {},
                        .code_points = variant["code_points"]});
    for (const auto& one : variant["cases"])
      variants.back().cases.push_back({one[0], one[1], one[2]});
  }
  return variants;
}

}  // namespace millrace::text
