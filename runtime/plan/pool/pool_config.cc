#include "runtime/plan/pool/pool_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int64_t kMaxPrefetch = 64;
constexpr int64_t kMaxNumel =
    int64_t{1} << 40;  // 8 TiB at 8 bytes each: sums over any pattern stay far below 2^63

// The dtypes that are gathered, by their names in configs.
std::optional<DType> BucketDType(std::string_view name) {
  if (name == "fp32" || name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  if (name == "u8") return DType::kU8;
  return std::nullopt;
}

std::string KeyPath(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// Reads values and collects what is wrong with them, so that one run reports everything.
class Reader {
 public:
  void Fail(const std::string& path, const json& value, std::string_view allowed) {
    constexpr size_t kShown = 60;
    std::string text = DumpJson(value, {.ascii = true, .replace = true});
    if (text.size() > kShown) text = text.substr(0, kShown) + "...";
    errors_.push_back(
        fmt::format("{}: {}; allowed: {}", path.empty() ? "document" : path, text, allowed));
  }

  // True if `value` is an object; its missing and unknown keys are reported.
  bool Object(const json& value, const std::string& path,
              std::initializer_list<std::string_view> keys) {
    if (!value.is_object()) {
      Fail(path, value, "an object");
      return false;
    }
    std::string allowed;
    for (const std::string_view key : keys) {
      allowed += allowed.empty() ? "" : ", ";
      allowed += key;
      if (!value.contains(key)) errors_.push_back(KeyPath(path, key) + ": missing");
    }
    for (const auto& [key, unused] : value.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        errors_.push_back(fmt::format("{}: unknown key; allowed: {}", KeyPath(path, key), allowed));
    return true;
  }

  // The member, or null where it is missing (reported by Object already) or refused.
  const json* Member(const json& object, const char* key, const std::string& path,
                     bool (json::*is)() const noexcept, std::string_view allowed) {
    const auto member = object.find(key);
    if (member == object.end()) return nullptr;
    if (((*member).*is)() && (!member->is_array() || !member->empty())) return &*member;
    Fail(KeyPath(path, key), *member, allowed);
    return nullptr;
  }

  int64_t Integer(const json& object, const char* key, const std::string& path, int64_t low,
                  int64_t high) {
    const std::string allowed = fmt::format("an integer from {} to {}", low, high);
    const json* value = Member(object, key, path, &json::is_number_integer, allowed);
    if (value == nullptr) return low;
    const bool too_big =
        value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(high);
    if (!too_big && value->get<int64_t>() >= low && value->get<int64_t>() <= high)
      return value->get<int64_t>();
    Fail(KeyPath(path, key), *value, allowed);
    return low;
  }

  void ThrowIfAny() const {
    std::string lines;
    for (const std::string& error : errors_) lines += (lines.empty() ? "" : "\n") + error;
    MR_REQUIRE(ErrorCode::kConfig, errors_.empty(), "{}", lines);
  }

 private:
  std::vector<std::string> errors_;
};

PoolBucket ReadBucket(Reader& reader, const json& value, const std::string& path) {
  PoolBucket bucket;
  if (!reader.Object(value, path, {"dtype", "numel"})) return bucket;
  constexpr std::string_view kDTypes = "\"bf16\", \"fp32\" or \"u8\"";
  if (const json* name = reader.Member(value, "dtype", path, &json::is_string, kDTypes)) {
    if (const auto dtype = BucketDType(name->get_ref<const std::string&>()))
      bucket.dtype = *dtype;
    else
      reader.Fail(path + ".dtype", *name, kDTypes);
  }
  bucket.numel = reader.Integer(value, "numel", path, 1, kMaxNumel);
  return bucket;
}

PoolUnitKind ReadUnit(Reader& reader, const json& value, const std::string& path) {
  PoolUnitKind unit;
  if (!reader.Object(value, path, {"kind", "buckets"})) return unit;
  constexpr std::string_view kKind = "one printable ASCII character";
  if (const json* kind = reader.Member(value, "kind", path, &json::is_string, kKind)) {
    const std::string& text = kind->get_ref<const std::string&>();
    if (text.size() == 1 && text[0] > ' ' && text[0] <= '~')
      unit.kind = text[0];
    else
      reader.Fail(path + ".kind", *kind, kKind);
  }
  if (const json* buckets =
          reader.Member(value, "buckets", path, &json::is_array, "an array of at least one bucket"))
    for (size_t b = 0; b < buckets->size(); ++b)
      unit.buckets.push_back(
          ReadBucket(reader, (*buckets)[b], fmt::format("{}.buckets[{}]", path, b)));
  return unit;
}

void ReadPattern(Reader& reader, const json& pool, PoolConfig& config) {
  std::string kinds;
  for (const PoolUnitKind& unit : config.units)
    if (unit.kind != 0) kinds += unit.kind;  // 0: refused above
  const std::string allowed =
      fmt::format("at least one character, each a kind of pool.units: {}", kinds);
  const json* pattern = reader.Member(pool, "pattern", "pool", &json::is_string, allowed);
  if (pattern == nullptr) return;
  config.pattern = pattern->get<std::string>();
  const size_t unknown = config.pattern.find_first_not_of(kinds);
  if (config.pattern.empty() || unknown != std::string::npos)
    reader.Fail(
        unknown == std::string::npos ? "pool.pattern" : fmt::format("pool.pattern[{}]", unknown),
        *pattern, allowed);
}

const PoolUnitKind& KindOf(const PoolConfig& config, char kind) {
  const auto unit = std::find_if(config.units.begin(), config.units.end(),
                                 [&](const PoolUnitKind& u) { return u.kind == kind; });
  MR_CHECK(unit != config.units.end(), "pool.pattern: no unit of kind '{}'", kind);
  return *unit;
}

}  // namespace

PoolConfig ParsePoolConfig(const json& document) {
  Reader reader;
  PoolConfig config;
  const json* pool = nullptr;
  if (reader.Object(document, "", {"pool"}) && document.contains("pool"))
    pool = &document.at("pool");
  if (pool != nullptr && reader.Object(*pool, "pool", {"prefetch", "units", "pattern"})) {
    config.prefetch = static_cast<int>(reader.Integer(*pool, "prefetch", "pool", 0, kMaxPrefetch));
    if (const json* units = reader.Member(*pool, "units", "pool", &json::is_array,
                                          "an array of at least one unit kind"))
      for (size_t u = 0; u < units->size(); ++u) {
        const std::string path = fmt::format("pool.units[{}]", u);
        PoolUnitKind unit = ReadUnit(reader, (*units)[u], path);
        const bool twice =
            std::any_of(config.units.begin(), config.units.end(),
                        [&](const PoolUnitKind& other) { return other.kind == unit.kind; });
        if (twice && unit.kind != 0)
          reader.Fail(path + ".kind", (*units)[u]["kind"], "each kind once");
        config.units.push_back(std::move(unit));
      }
    ReadPattern(reader, *pool, config);
  }
  reader.ThrowIfAny();
  return config;
}

std::vector<Item> PoolConfigItems(const PoolConfig& config) {
  const int64_t layers = static_cast<int64_t>(config.pattern.size());
  std::vector<Item> items;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const Interval forward{std::max<int64_t>(0, layer - config.prefetch), layer + 1};
    const int64_t computes = 2 * layers - 1 - layer;
    const Interval backward{std::max(layers, computes - config.prefetch), computes + 1};
    const bool kept = forward.end == backward.begin;
    const std::vector<Interval> live =
        kept ? std::vector{Interval{forward.begin, backward.end}} : std::vector{forward, backward};
    const char kind = config.pattern[static_cast<size_t>(layer)];
    const PoolUnitKind& unit = KindOf(config, kind);
    for (size_t b = 0; b < unit.buckets.size(); ++b)
      items.push_back({.name = fmt::format("{}.{}.{}", layer, kind, b),
                       .bytes = unit.buckets[b].numel * Bytes(unit.buckets[b].dtype),
                       .intervals = live,
                       .unit = static_cast<int32_t>(layer),
                       .dtype = unit.buckets[b].dtype});
  }
  return items;
}

PoolFigures PlanPoolFigures(const PoolConfig& config) {
  const std::vector<Item> items = PoolConfigItems(config);
  const auto pool_bytes = [&](AllocatorKind kind) {
    const Placement placement = PlanPool(items, {.kind = kind, .slots = config.prefetch + 1});
    VerifyPlacement(items, placement);
    return placement.pool_bytes;
  };
  return {.dynamic = pool_bytes(AllocatorKind::kDynamic),
          .persistent = pool_bytes(AllocatorKind::kPersistent),
          .fixed = pool_bytes(AllocatorKind::kFixed),
          .max_pool = pool_bytes(AllocatorKind::kMaxPool),
          .coloured = pool_bytes(AllocatorKind::kColoured),
          .packed = pool_bytes(AllocatorKind::kPacked),
          .lower_bound = LowerBound(items)};
}

json PoolFiguresJson(const PoolFigures& figures) {
  return {{"pool",
           {{"dynamic", figures.dynamic},
            {"persistent", figures.persistent},
            {"fixed", figures.fixed},
            {"max_pool", figures.max_pool},
            {"coloured", figures.coloured},
            {"packed", figures.packed},
            {"lower_bound", figures.lower_bound}}}};
}

}  // namespace millrace
