// The fields of one config.json: each is asked for by name, and what nobody asked for is an error.
//
// Errors   Problems are collected, each with the field, its line and value; ThrowIfAny throws
//          Error(kData) with all of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/huggingface/config_fields.h"
#include "runtime/config/config.h"
#include "runtime/config/json_text.h"

namespace millrace {

class FieldReader {
 public:
  using Json = nlohmann::json;

  // `name` is the file's, for messages.
  FieldReader(std::string_view text, std::string name);

  // null: it is absent.
  const Json* Find(const std::string& field);

  // Absent or null: `otherwise`; without one, a problem. Bounded, so that a product of two sizes
  // fits 64 bits.
  int64_t Size(const std::string& field, std::optional<int64_t> otherwise = std::nullopt);
  int64_t Size(const std::string& section, const std::string& field, const Json& object,
               std::optional<int64_t> otherwise);
  // Positive.
  double Number(const std::string& field, double otherwise);
  double Number(const std::string& section, const std::string& field, const Json& value);
  double NumberFromZero(const std::string& field, double otherwise);  // not negative
  bool Flag(const std::string& field, bool otherwise);
  // Heads that split the width: `m`'s, whose fields are called so.
  int64_t HeadDim(const ModelConfig& m, const char* width, const char* heads);

  // num_nextn_predict_layers; absent, null or 0: there are none.
  int64_t MtpDepth();

  void CheckFixed(std::span<const FixedField> fields);
  // Every field must have been asked for, or be harmless.
  void CheckUnknown();
  // The bounds of the keys that the fields become.
  void CheckRanges(const ModelConfig& model);

  // "line 7: rope_scaling.rope_type = \"yarn\": only ..."
  void Problem(const std::string& section, const std::string& field, const Json& value,
               const std::string& text);
  void Add(std::string text) { problems_.push_back(std::move(text)); }
  void ThrowIfAny() const;

 private:
  JsonText text_;
  std::string name_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace millrace
