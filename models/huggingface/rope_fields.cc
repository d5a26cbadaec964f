#include "models/huggingface/rope_fields.h"

#include <fmt/format.h>

#include <set>

namespace millrace {
namespace {

using Json = FieldReader::Json;

std::optional<RopeScalingConfig> Scaling(FieldReader& f, const std::string& section,
                                         const Json& value, std::set<std::string>* known) {
  Json type = "default";
  for (const char* field : {"type", "rope_type"}) {  // the former is the older name
    known->insert(field);
    if (!value.contains(field)) continue;
    if (type != "default" && type != value[field])
      f.Problem(section, field, value[field], "differs from the type beside it");
    type = value[field];
  }
  known->insert("partial_rotary_factor");
  if (value.contains("partial_rotary_factor") && value["partial_rotary_factor"] != 1)
    f.Problem(section, "partial_rotary_factor", value["partial_rotary_factor"],
              "only 1 is supported: the whole head is rotated");
  if (type == "default") return std::nullopt;
  if (type != "llama3") {
    f.Problem(section, "rope_type", type, "only default and llama3 are supported");
    for (const auto& [field, inner] : value.items())
      known->insert(field);  // of a type that is refused as a whole
    return std::nullopt;
  }
  const auto number = [&](const char* field) {
    known->insert(field);
    if (value.contains(field)) return f.Number(section, field, value[field]);
    f.Add(fmt::format("{}.{} is missing; llama3 scaling needs it", section, field));
    return 1.0;
  };
  RopeScalingConfig scaling;
  scaling.factor = number("factor");
  scaling.low_freq_factor = number("low_freq_factor");
  scaling.high_freq_factor = number("high_freq_factor");
  if (scaling.low_freq_factor >= scaling.high_freq_factor && value.contains("low_freq_factor"))
    f.Problem(section, "low_freq_factor", value["low_freq_factor"],
              "must be less than high_freq_factor");
  known->insert("original_max_position_embeddings");
  scaling.original_max_position_embeddings =
      f.Size(section, "original_max_position_embeddings", value, std::nullopt);
  return scaling;
}

}  // namespace

void ReadRope(FieldReader& f, ModelConfig* m) {
  const bool has_theta = f.Find("rope_theta") != nullptr;
  m->rope_theta = f.Number("rope_theta", 10000);
  bool seen = false;
  for (const char* section : {"rope_scaling", "rope_parameters"}) {
    const Json* value = f.Find(section);
    if (!value || value->is_null()) continue;
    if (!value->is_object()) {
      f.Problem("", section, *value, "must be an object, or null");
      continue;
    }
    std::set<std::string> known = {"rope_theta"};
    if (const auto theta = value->find("rope_theta"); theta != value->end()) {
      const double found = f.Number(section, "rope_theta", *theta);
      if (has_theta && found != *m->rope_theta)
        f.Problem(section, "rope_theta", *theta, "differs from the rope_theta beside it");
      m->rope_theta = found;
    }
    const std::optional<RopeScalingConfig> scaling = Scaling(f, section, *value, &known);
    for (const auto& [field, inner] : value->items())
      if (!known.contains(field))
        f.Problem(section, field, inner, "not a field of this rope_type that we know");
    if (seen && m->rope_scaling != scaling) f.Add("rope_scaling and rope_parameters disagree");
    m->rope_scaling = scaling;
    seen = true;
  }
}

}  // namespace millrace
