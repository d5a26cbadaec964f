#include "runtime/config/document.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/enum_names.h"
#include "runtime/config/keys.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order of the table

Json Number(const Key& key, double value) {
  const bool integer = key.type == KeyType::kInteger || key.type == KeyType::kIntegerOrList;
  return integer ? Json(static_cast<int64_t>(value)) : Json(value);
}

void AddBounds(const Key& key, Json& schema) {
  const KeyRange& range = key.range;
  if (range.min > -std::numeric_limits<double>::infinity())
    schema[range.min_exclusive ? "exclusiveMinimum" : "minimum"] = Number(key, range.min);
  if (range.max < std::numeric_limits<double>::infinity())
    schema[range.max_exclusive ? "exclusiveMaximum" : "maximum"] = Number(key, range.max);
}

Json TypeName(const Key& key, std::string_view name) {
  return key.nullable ? Json::array({name, "null"}) : Json(name);
}

Json SchemaOfSource() {
  const auto text = [](const Json& type) { return Json{{"type", type}, {"minLength", 1}}; };
  const Json or_null = Json::array({"string", "null"});
  return {{"type", "object"},
          {"properties",
           {{"path", text("string")},
            {"weight", {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1e15}}},
            {"kind", {{"enum", {"text", "tokens", nullptr}}}},
            {"val_path", text(or_null)}}},
          {"required", {"path"}},
          {"additionalProperties", false}};
}

Json SchemaOfGroup() {
  const Json text = {{"type", "string"}, {"minLength", 1}};
  const auto number = [](double min, double max) {
    return Json{{"type", "number"}, {"minimum", min}, {"maximum", max}};
  };
  const Json beta = {{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}};
  return {
      {"type", "object"},
      {"properties",
       {{"parameters",
         {{"anyOf", Json::array({text, {{"type", "array"}, {"minItems", 1}, {"items", text}}})}}},
        {"name", {{"enum", NamesOf(OptimizerKind{})}}},
        {"lr", number(0, 1000)},
        {"lr_mult", number(0, 1000)},
        {"weight_decay", number(0, 1000)},
        {"betas", {{"type", "array"}, {"minItems", 2}, {"maxItems", 2}, {"items", beta}}},
        {"eps", number(1e-30, 1e30)},
        {"frozen", {{"type", "boolean"}}}}},
      {"required", {"parameters"}},
      {"additionalProperties", false}};
}

Json SchemaOf(const Key& key) {
  Json schema;
  schema["description"] = key.doc;
  switch (key.type) {
    case KeyType::kBool:
      schema["type"] = TypeName(key, "boolean");
      break;
    case KeyType::kInteger:
      schema["type"] = TypeName(key, "integer");
      AddBounds(key, schema);
      break;
    case KeyType::kNumber:
      schema["type"] = TypeName(key, "number");
      AddBounds(key, schema);
      break;
    case KeyType::kString:
      schema["type"] = TypeName(key, "string");
      schema["minLength"] = 1;
      break;
    case KeyType::kChoice:
      schema["enum"] = key.choices;
      if (key.nullable) schema["enum"].push_back(nullptr);
      break;
    case KeyType::kNumberPair: {
      schema["type"] = TypeName(key, "array");
      schema["minItems"] = schema["maxItems"] = 2;
      Json item;
      item["type"] = "number";
      AddBounds(key, item);
      schema["items"] = item;
      break;
    }
    case KeyType::kIntegerOrList: {
      Json one, list;
      one["type"] = "integer";
      AddBounds(key, one);
      list["type"] = "array";
      list["minItems"] = 1;
      list["items"] = one;
      schema["anyOf"] = Json::array({one, list});
      if (key.nullable) schema["anyOf"].push_back({{"type", "null"}});
      break;
    }
    case KeyType::kStrings:
      schema["type"] = TypeName(key, "array");
      schema["minItems"] = 1;
      schema["items"] = {{"type", "string"}, {"minLength", 1}};
      break;
    case KeyType::kGroups:
      schema["type"] = TypeName(key, "array");
      schema["minItems"] = 1;
      schema["items"] = SchemaOfGroup();
      break;
    case KeyType::kSources:
      schema["type"] = TypeName(key, "array");
      schema["minItems"] = 1;
      schema["items"] = SchemaOfSource();
      break;
  }
  if (!key.required) schema["default"] = Json(ToJson(key.get(Config())));
  return schema;
}

Json EmptyObject() {
  Json schema;
  schema["type"] = "object";
  schema["properties"] = Json::object();
  schema["additionalProperties"] = false;
  return schema;
}

// The schema of a section, made with those around it when first asked for.
Json& SectionSchema(Json& root, std::string_view path) {
  if (path.empty()) return root;
  const size_t dot = path.rfind('.');
  Json& parent = SectionSchema(root, dot == path.npos ? std::string_view() : path.substr(0, dot));
  Json& schema = parent["properties"][std::string(path.substr(dot + 1))];
  if (schema.is_null()) {
    schema = EmptyObject();
    if (IsNullableSection(path)) {
      schema["type"] = Json::array({"object", "null"});
      schema["default"] = nullptr;
    }
  }
  return schema;
}

std::string Default(const Key& key) {
  if (key.required) return "required";
  const nlohmann::json value = ToJson(key.get(Config()));
  return fmt::format("`{}`", value.is_string() ? value.get<std::string>() : DumpJson(value));
}

// The value that the null of a key stands for, or null where there is none.
KeyValue InForce(std::string_view path, const Config& config, std::optional<int64_t> world) {
  const ModelConfig& model = config.model;
  if (model.init_from && path.starts_with("model.")) return {};  // that folder says
  if (path == "model.kv_heads") return model.KvHeads();
  if (path == "model.head_dim") return model.HeadDim();
  if (path == "model.ffn") return model.Ffn();
  if (path == "model.vocab") return model.Vocab();
  if (path == "model.tied") return model.Tied();
  if (path == "model.activation") return std::string(Name(model.ActivationKind()));
  if (path == "model.rope_theta" && model.Rope()) return model.RopeTheta();
  if (path == "model.attention.rope") return model.Rope();
  if (path == "model.attention.qk_norm") return model.QkNorm();
  if (path == "model.moe.router" && model.Has('E')) return std::string(Name(model.Router()));
  if (path == "model.moe.bias" && model.Has('E')) return model.RouterBias();
  if (path == "train.accumulate" && (world || !config.train.global_batch))
    return config.train.Accumulate(config.parallel.DataRanks(world.value_or(1)));
  if (path == "train.global_batch" && world)
    return config.train.GlobalBatch(config.parallel.DataRanks(*world));
  if (path == "optimizer.muon.lr" && config.optimizer.HasMuon()) return config.optimizer.MuonLr();
  if (path == "optimizer.muon.weight_decay" && config.optimizer.HasMuon())
    return config.optimizer.MuonWeightDecay();
  if (path == "optimizer.schedule.decay_steps" &&
      config.optimizer.schedule.kind != ScheduleConfig::Kind::kConstant)
    return config.optimizer.schedule.DecaySteps(config.train.steps);
  if (path == "parallel.shard" && world) return config.parallel.Shard(*world);
  if (path == "memory.slots" && MemoryConfig::HasSlots(config.memory.allocator))
    return config.memory.Slots();
  return {};
}

// What stands above the tables of configs/README.md.
constexpr std::string_view kPageBegin = R"(# Configuration

A run is one JSON file, or several: later files win, objects merge. `--set optimizer.lr=3e-4` wins
over files; it is typed by its key, and strings need no quotes. Unknown keys, wrong types and values
out of range are all reported at once, with exit code 2, before anything starts.

- `millrace config show FILE`: every value in force, and where it comes from; `--world N`: on N
  ranks.
- `millrace config validate FILE`: nothing but the errors.
- `millrace config schema`: this page as JSON Schema (draft 7), for an editor; name it in a file's
  `"$schema"`.

`null` stands for "not given". This page is generated from the table in runtime/config/keys.cc.

## Keys without effect

A value other than the default that can have no effect is an error, too: `rope_theta` for gpt2,
`slots` for an allocator without any, `downcast` with fp32 weights. It matters who decided that. A
file is one author, and all `--set` together are one, the last.

- An error, exit code 2: a key that is idle because of values by the same author or by earlier ones,
  or because of defaults. Example: a file with a constant schedule and a `min_lr`.
- A note, and the run goes on: a key that is idle because of a value by a later author. Example:
  `--set optimizer.schedule.kind=constant` over a file with a cosine schedule and a `min_lr`. The
  note names both keys and where each was written.
- A note as well: a key that is idle because of the number of ranks (`prefetch` on one rank) or
  because `execution.backend` auto found no GPU (`tune`). The same file may serve elsewhere. But
  `parallel.shard` 1 and `execution.backend` cpu are values like any other.

Notes go to standard error, and `millrace config show` ends with them. What makes which key idle is
a table in runtime/config/idle_keys.cc.

## Hybrids

| file | model |
|---|---|
| `nemotron_nano` | Nemotron-3-Nano-30B-A3B: 23 Mamba-2 mixers, 23 mixtures of experts, 6 attentions. Balanced as its recipe has it: by the router's bias and a small loss of each sequence. |
| `nemotron_nano_half` | The first 26 of its 52 blocks. |
| `nemotron_h_8b` | Nemotron-H-8B: Mamba-2, MLP and 4 attentions in 52 blocks. |
| `nemotron_h_1b` | Not published: the first 26 of these blocks at half the width and half the heads, 1.17 billion weights in products. |
| `qwen3_moe_8l` | Eight of the 48 layers of Qwen3-30B-A3B. |

`--set model.mtp.depth=1` adds a block that predicts one token further; nemotron_h says what is in
it, too: `--set 'model.mtp.pattern=*E'`, or `*-` where the trunk has no experts.
)";

}  // namespace

std::string ConfigSchemaJson() {
  Json root;
  root["$schema"] = "http://json-schema.org/draft-07/schema#";
  root["title"] = "Millrace configuration";
  root.update(EmptyObject());
  root["properties"]["$schema"] =
      Json::object({{"description", "Where an editor finds this schema."}});
  for (const Key& key : Keys()) {
    Json& section = SectionSchema(root, key.section());
    section["properties"][std::string(key.leaf())] = SchemaOf(key);
    if (key.required) section["required"].push_back(key.leaf());
  }
  return DumpJson(root, {.indent = 2}) + "\n";
}

std::string ConfigDocsMarkdown() {
  std::string text(kPageBegin);
  std::string_view section;
  for (const Key& key : Keys()) {
    if (key.section() != section) {
      section = key.section();
      text +=
          fmt::format("\n## {}\n{}\n| key | allowed | default | |\n|---|---|---|---|\n", section,
                      IsNullableSection(section)
                          ? "\nAn object with all of these keys, or `null` (the default).\n"
                          : "");
    }
    text +=
        fmt::format("| `{}` | {} | {} | {} |\n", key.leaf(), Allowed(key), Default(key), key.doc);
  }
  return text;
}

KeyValue ValueInForce(const Key& key, const Config& config, std::optional<int64_t> world) {
  const KeyValue value = key.get(config);
  return value == KeyValue() ? InForce(key.path, config, world) : value;
}

std::string ConfigShow(const LoadedConfig& loaded) {
  struct Row {
    std::string path, value, origin;
  };
  std::vector<Row> rows;
  for (const Key& key : Keys()) {
    const std::string section(key.section());
    if (key.required && !loaded.config.model.rope_scaling) {
      const auto origin = loaded.origin.find(section);
      if (rows.back().path != section)
        rows.push_back(
            {section, "null", origin == loaded.origin.end() ? "default" : origin->second});
      continue;
    }
    Row row = {key.path, DumpJson(ToJson(key.get(loaded.config))), loaded.origin.at(key.path)};
    if (const KeyValue in_force = InForce(key.path, loaded.config, loaded.world);
        row.value == "null" && in_force != KeyValue()) {
      row.value = DumpJson(ToJson(in_force));
      row.origin += " (null)";
    }
    rows.push_back(row);
  }
  size_t path_width = 0, value_width = 0;
  for (const Row& row : rows) {
    path_width = std::max(path_width, row.path.size());
    value_width = std::max(value_width, std::min<size_t>(row.value.size(), 32));
  }
  std::string text;
  for (const Row& row : rows)
    text += fmt::format("{:<{}}  {:<{}}  {}\n", row.path, path_width, row.value, value_width,
                        row.origin);
  const ParallelConfig& parallel = loaded.config.parallel;
  if (parallel.DataRankSize() > 1) {
    std::optional<int64_t> world = loaded.world;
    if (!world && parallel.shard)
      world = *parallel.shard * parallel.replicate * parallel.OtherAxes();
    text += "note: " +
            (world ? RanksInWords(parallel.MeshOver(*world))
                   : "a data rank is " + DataRankInWords(parallel.MeshOver(1))) +
            "\n";
  }
  for (const std::string& note : loaded.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace millrace
