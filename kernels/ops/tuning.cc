#include "kernels/ops/tuning.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// What only products in FP8 have is left out elsewhere.
Json ToJson(const MatrixKey& m) {
  Json json = Json::array({m.transposed, m.ld, m.alignment});
  if (m.scales != KeyScales::kNone) json.push_back(Name(m.scales));
  return json;
}

KeyScales KeyScalesOf(const Json& json) {
  const std::string name = json.get<std::string>();
  for (const KeyScales scales : {KeyScales::kTensor, KeyScales::kVectors, KeyScales::kBlocks})
    if (name == Name(scales)) return scales;
  throw Error(ErrorCode::kData, fmt::format("'{}' are no scales", name));
}

MatrixKey MatrixOf(const Json& json) {
  return {.transposed = json.at(0).get<bool>(),
          .ld = json.at(1).get<int64_t>(),
          .alignment = json.at(2).get<int64_t>(),
          .scales = json.size() > 3 ? KeyScalesOf(json.at(3)) : KeyScales::kNone};
}

DType DTypeOf(const Json& json) {
  const std::string name = json.get<std::string>();
  const std::optional<DType> dtype = DTypeFromName(name);
  MR_REQUIRE(ErrorCode::kData, dtype.has_value(), "'{}' is no dtype", name);
  return *dtype;
}

// What was not measured is left out.
Json ToJson(const MeasuredAlgorithm& measured) {
  Json json{{"description", measured.description}, {"us", measured.microseconds}};
  if (measured.hot_microseconds) json["hot_us"] = *measured.hot_microseconds;
  if (measured.sm_mhz) json["sm_mhz"] = *measured.sm_mhz;
  if (measured.millijoules)
    json["mj"] = *measured.millijoules, json["mj_off"] = measured.millijoules_off;
  return json;
}

std::optional<double> NumberIn(const Json& json, const char* key) {
  if (!json.contains(key)) return std::nullopt;
  return json.at(key).get<double>();
}

MeasuredAlgorithm MeasuredOf(const Json& json) {
  return {.description = json.at("description").get<std::string>(),
          .microseconds = json.at("us").get<double>(),
          .hot_microseconds = NumberIn(json, "hot_us"),
          .sm_mhz = NumberIn(json, "sm_mhz"),
          .millijoules = NumberIn(json, "mj"),
          .millijoules_off = json.value("mj_off", 0.0)};
}

Json ToJson(const MatmulKey& key, const TunedMatmul& tuned) {
  Json entry{{"mnk", {key.m, key.n, key.k}},
             {"operands", Name(key.operands)},
             {"result", Name(key.result)},
             {"a", ToJson(key.a)},
             {"b", ToJson(key.b)},
             {"out", ToJson(key.out)},
             {"bias", key.bias},
             {"algorithm", tuned.algorithm},
             {"description", tuned.description},
             {"us", tuned.microseconds},
             {"default_us", tuned.default_microseconds}};
  if (key.gelu_grad) entry["gelu_grad"] = true;
  if (key.b_operands) entry["b_operands"] = Name(*key.b_operands);
  for (const MeasuredAlgorithm& measured : tuned.measured)
    entry["measured"].push_back(ToJson(measured));
  if (!tuned.no_joules.empty()) entry["no_joules"] = tuned.no_joules;
  return entry;
}

std::pair<MatmulKey, TunedMatmul> EntryOf(const Json& json) {
  MatmulKey key{.m = json.at("mnk").at(0).get<int64_t>(),
                .n = json.at("mnk").at(1).get<int64_t>(),
                .k = json.at("mnk").at(2).get<int64_t>(),
                .operands = DTypeOf(json.at("operands")),
                .result = DTypeOf(json.at("result")),
                .a = MatrixOf(json.at("a")),
                .b = MatrixOf(json.at("b")),
                .out = MatrixOf(json.at("out")),
                .bias = json.at("bias").get<bool>(),
                .gelu_grad = json.value("gelu_grad", false)};
  if (json.contains("b_operands")) key.b_operands = DTypeOf(json.at("b_operands"));
  TunedMatmul tuned{.algorithm = json.at("algorithm").get<std::string>(),
                    .description = json.at("description").get<std::string>(),
                    .microseconds = json.at("us").get<double>(),
                    .default_microseconds = json.at("default_us").get<double>(),
                    .no_joules = json.value("no_joules", "")};
  if (json.contains("measured"))
    for (const Json& measured : json.at("measured")) tuned.measured.push_back(MeasuredOf(measured));
  return {key, tuned};
}

}  // namespace

std::string TuningTable::ToText() const {
  std::string text = fmt::format("{{\"device\": {},\n \"library\": {},\n \"matmuls\": [",
                                 DumpJson(Json(device)), DumpJson(Json(library_version)));
  const char* separator = "\n  ";
  for (const auto& [key, tuned] : matmuls) {
    text += separator + DumpJson(ToJson(key, tuned));
    separator = ",\n  ";
  }
  return text + "\n ]}\n";
}

TuningTable TuningTable::FromText(std::string_view text, const std::string& origin) {
  try {
    const Json json = ParseOrderedJson(text);
    TuningTable table;
    table.device = json.at("device").get<std::string>();
    table.library_version = json.at("library").get<std::string>();
    for (const Json& entry : json.at("matmuls")) {
      auto [key, tuned] = EntryOf(entry);
      const bool is_new = table.matmuls.emplace(key, std::move(tuned)).second;
      MR_REQUIRE(ErrorCode::kData, is_new, "two entries for {}", ToString(key));
    }
    return table;
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::kData, fmt::format("{} is no tuning table: {}", origin, e.what()));
  } catch (const Error& e) {
    throw Error(ErrorCode::kData, fmt::format("{} is no tuning table: {}", origin, e.what()));
  }
}

std::string TuningTable::Hash() const {
  std::string decisive = device + '\n' + library_version + '\n';
  for (const auto& [key, tuned] : matmuls)
    decisive += ToString(key) + ": " + tuned.algorithm + '\n';
  const XXH128_hash_t hash = XXH3_128bits(decisive.data(), decisive.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace millrace
