#include "models/huggingface/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "models/huggingface/config_fields.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/json_text.h"
#include "runtime/config/keys.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(std::string_view text, std::string name)
      : text_(std::string(text)), name_(std::move(name)) {
    for (const JsonTextProblem& problem : text_.problems())
      Add(fmt::format("line {}: {}", PositionOf(text_.text(), problem.offset).line, problem.text));
    if (problems_.empty() && !text_.root().is_object()) Add("must be an object");
    ThrowIfAny();
  }

  ModelConfig Read() {
    const Json* type = Find("model_type");
    const bool gpt2 = type && *type == "gpt2", llama = type && *type == "llama";
    if (!type) Add("model_type is missing; gpt2 and llama can be read");
    if (type && !gpt2 && !llama)
      Problem("", "model_type", *type, "only gpt2 and llama can be read");
    ThrowIfAny();  // the other fields mean nothing without it
    const ModelConfig model = gpt2 ? Gpt2() : Llama();
    CheckFixed(CommonFixedFields());
    CheckFixed(gpt2 ? Gpt2FixedFields() : LlamaFixedFields());
    for (const auto& [field, value] : text_.root().items())
      if (!known_.contains(field) && !IsHarmlessField(field))
        Problem("", field, value,
                "not a field that we know, so it cannot be honoured. Remove it if it does not "
                "change the model");
    ThrowIfAny();
    CheckRanges(model);
    ThrowIfAny();
    return model;
  }

 private:
  ModelConfig Gpt2() {
    ModelConfig m;
    m.family = ModelConfig::Family::kGpt2;
    m.layers = Size("n_layer");
    m.d_model = Size("n_embd");
    m.heads = Size("n_head");
    m.kv_heads = m.heads;
    m.head_dim = HeadDim(m, "n_embd", "n_head");
    m.ffn = Size("n_inner", 4 * m.d_model);
    m.vocab = Size("vocab_size");
    m.seq_len = Size("n_positions");
    const Json* context = Find("n_ctx");  // the older name
    if (context && *context != m.seq_len)
      Problem("", "n_ctx", *context, fmt::format("must equal n_positions, which is {}", m.seq_len));
    m.tied = Flag("tie_word_embeddings", true);
    m.activation = ModelConfig::Activation::kGelu;
    m.norm_eps = Number("layer_norm_epsilon", 1e-5);
    m.init_std = Number("initializer_range", 0.02);
    return m;
  }

  ModelConfig Llama() {
    ModelConfig m;
    m.family = ModelConfig::Family::kLlama;
    m.layers = Size("num_hidden_layers");
    m.d_model = Size("hidden_size");
    m.heads = Size("num_attention_heads");
    m.kv_heads = Size("num_key_value_heads", m.heads);
    if (m.heads % *m.kv_heads != 0)
      Add(fmt::format("num_key_value_heads, {}, must divide num_attention_heads, {}", *m.kv_heads,
                      m.heads));
    const Json* head_dim = Find("head_dim");
    m.head_dim = head_dim && !head_dim->is_null()
                     ? Size("head_dim")
                     : HeadDim(m, "hidden_size", "num_attention_heads");
    if (*m.head_dim % 2 != 0)
      Add(fmt::format("a head has {} elements (head_dim); rotary positions need an even number",
                      *m.head_dim));
    m.ffn = Size("intermediate_size");
    m.vocab = Size("vocab_size");
    m.seq_len = Size("max_position_embeddings");
    m.tied = Flag("tie_word_embeddings", false);
    m.activation = ModelConfig::Activation::kSwiglu;
    m.norm_eps = Number("rms_norm_eps", 1e-6);
    m.init_std = Number("initializer_range", 0.02);
    Rope(&m);
    return m;
  }

  // transformers 4: rope_theta beside rope_scaling. transformers 5: rope_parameters holds both. A
  // file may have both forms, which must then agree.
  void Rope(ModelConfig* m) {
    const bool has_theta = Find("rope_theta") != nullptr;
    m->rope_theta = Number("rope_theta", 10000);
    bool seen = false;
    for (const char* section : {"rope_scaling", "rope_parameters"}) {
      const Json* value = Find(section);
      if (!value || value->is_null()) continue;
      if (!value->is_object()) {
        Problem("", section, *value, "must be an object, or null");
        continue;
      }
      std::set<std::string> known = {"rope_theta"};
      if (const auto theta = value->find("rope_theta"); theta != value->end()) {
        const double found = Number(section, "rope_theta", *theta);
        if (has_theta && found != *m->rope_theta)
          Problem(section, "rope_theta", *theta, "differs from the rope_theta beside it");
        m->rope_theta = found;
      }
      const std::optional<RopeScalingConfig> scaling = Scaling(section, *value, &known);
      for (const auto& [field, inner] : value->items())
        if (!known.contains(field))
          Problem(section, field, inner, "not a field of this rope_type that we know");
      if (seen && m->rope_scaling != scaling) Add("rope_scaling and rope_parameters disagree");
      m->rope_scaling = scaling;
      seen = true;
    }
  }

  std::optional<RopeScalingConfig> Scaling(const std::string& section, const Json& value,
                                           std::set<std::string>* known) {
    Json type = "default";
    for (const char* field : {"type", "rope_type"}) {  // the former is the older name
      known->insert(field);
      if (!value.contains(field)) continue;
      if (type != "default" && type != value[field])
        Problem(section, field, value[field], "differs from the type beside it");
      type = value[field];
    }
    known->insert("partial_rotary_factor");
    if (value.contains("partial_rotary_factor") && value["partial_rotary_factor"] != 1)
      Problem(section, "partial_rotary_factor", value["partial_rotary_factor"],
              "only 1 is supported: the whole head is rotated");
    if (type == "default") return std::nullopt;
    if (type != "llama3") {
      Problem(section, "rope_type", type, "only default and llama3 are supported");
      for (const auto& [field, inner] : value.items())
        known->insert(field);  // of a type that is refused as a whole
      return std::nullopt;
    }
    const auto number = [&](const char* field) {
      known->insert(field);
      if (value.contains(field)) return Number(section, field, value[field]);
      Add(fmt::format("{}.{} is missing; llama3 scaling needs it", section, field));
      return 1.0;
    };
    RopeScalingConfig scaling;
    scaling.factor = number("factor");
    scaling.low_freq_factor = number("low_freq_factor");
    scaling.high_freq_factor = number("high_freq_factor");
    if (scaling.low_freq_factor >= scaling.high_freq_factor && value.contains("low_freq_factor"))
      Problem(section, "low_freq_factor", value["low_freq_factor"],
              "must be less than high_freq_factor");
    known->insert("original_max_position_embeddings");
    scaling.original_max_position_embeddings =
        Size(section, "original_max_position_embeddings", value, std::nullopt);
    return scaling;
  }

  const Json* Find(const std::string& field) {
    known_.insert(field);
    const auto it = text_.root().find(field);
    return it == text_.root().end() ? nullptr : &*it;
  }

  // Absent or null: `otherwise`; without one, an error. Bounded, so that a product
  // of two sizes fits 64 bits.
  int64_t Size(const std::string& field, std::optional<int64_t> otherwise = std::nullopt) {
    known_.insert(field);
    return Size("", field, text_.root(), otherwise);
  }
  int64_t Size(const std::string& section, const std::string& field, const Json& object,
               std::optional<int64_t> otherwise) {
    constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
    const auto value = object.find(field);
    if (value == object.end() || value->is_null()) {
      if (!otherwise)
        Add(fmt::format("{}{} is missing", section.empty() ? "" : section + ".", field));
      return otherwise.value_or(1);
    }
    if (value->is_number_integer() && *value >= 1 && *value <= kLargest)
      return value->get<int64_t>();
    Problem(section, field, *value, fmt::format("must be a whole number from 1 to {}", kLargest));
    return 1;
  }

  double Number(const std::string& field, double otherwise) {
    const Json* value = Find(field);
    return value ? Number("", field, *value) : otherwise;
  }
  double Number(const std::string& section, const std::string& field, const Json& value) {
    if (value.is_number() && value > 0) return value.get<double>();
    Problem(section, field, value, "must be a positive number");
    return 1;
  }

  bool Flag(const std::string& field, bool otherwise) {
    const Json* value = Find(field);
    if (!value) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    Problem("", field, *value, "must be true or false");
    return otherwise;
  }

  int64_t HeadDim(const ModelConfig& m, const char* width, const char* heads) {
    if (m.d_model % m.heads != 0)
      Add(fmt::format("{}, {}, must divide {}, {}", heads, m.heads, width, m.d_model));
    return std::max<int64_t>(1, m.d_model / m.heads);
  }

  void CheckFixed(std::span<const FixedField> fields) {
    for (const FixedField& field : fields) {
      const Json* value = Find(std::string(field.name));
      const Json allowed = ParseJson(field.allowed);
      if (!value || std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) continue;
      std::vector<std::string> texts;
      for (const Json& one : allowed) texts.push_back(DumpJson(one));
      Problem("", std::string(field.name), *value,
              fmt::format("only {} can be honoured: {}", fmt::join(texts, " or "), field.reason));
    }
  }

  // The bounds of the keys that the fields become.
  void CheckRanges(const ModelConfig& model) {
    Config config;
    config.model = model;
    for (const Key& key : Keys()) {
      const bool scaling = key.section() == "model.rope_scaling";
      if (scaling ? !model.rope_scaling : key.section() != "model") continue;
      const Json value = ToJson(key.get(config));
      if (value.is_number() && !key.range.Contains(value.get<double>()))
        Add(fmt::format("it makes {} {}, which must be {}", key.path, DumpJson(value),
                        Allowed(key)));
    }
  }

  // "line 7: rope_scaling.rope_type = \"yarn\": only ..."
  void Problem(const std::string& section, const std::string& field, const Json& value,
               const std::string& text) {
    std::string shown = DumpJson(value, {.ascii = true, .replace = true});
    if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
    const std::string parent = section.empty() ? "" : PointerTo("", section);
    const JsonMember* member = text_.Find(PointerTo(parent, field));
    const std::string place =
        member ? fmt::format("line {}: ", PositionOf(text_.text(), member->key).line) : "";
    Add(fmt::format("{}{}{}{} = {}: {}", place, section, section.empty() ? "" : ".", field, shown,
                    text));
  }
  void Add(std::string text) { problems_.push_back(std::move(text)); }

  void ThrowIfAny() const {
    if (problems_.empty()) return;
    throw Error(ErrorCode::kData, fmt::format("{}: this model cannot be read as it is meant:\n  {}",
                                              name_, fmt::join(problems_, "\n  ")));
  }

  JsonText text_;
  std::string name_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace

ModelConfig ModelFromHuggingFace(std::string_view text, const std::string& name) {
  return Reader(text, name).Read();
}

std::string HuggingFaceConfigText(const ModelConfig& m) {
  nlohmann::ordered_json j;
  if (m.family == ModelConfig::Family::kGpt2) {
    j = {{"architectures", nlohmann::ordered_json::array({"GPT2LMHeadModel"})},
         {"model_type", "gpt2"},
         {"activation_function", "gelu_new"},
         {"n_layer", m.layers},
         {"n_embd", m.d_model},
         {"n_head", m.heads},
         {"n_inner", m.Ffn()},
         {"n_positions", m.seq_len},
         {"layer_norm_epsilon", m.norm_eps},
         {"attn_pdrop", 0.0},
         {"embd_pdrop", 0.0},
         {"resid_pdrop", 0.0},
         {"scale_attn_weights", true},
         {"scale_attn_by_inverse_layer_idx", false},
         {"reorder_and_upcast_attn", false}};
  } else {
    j = {{"architectures", nlohmann::ordered_json::array({"LlamaForCausalLM"})},
         {"model_type", "llama"},
         {"hidden_act", "silu"},
         {"num_hidden_layers", m.layers},
         {"hidden_size", m.d_model},
         {"num_attention_heads", m.heads},
         {"num_key_value_heads", m.KvHeads()},
         {"head_dim", m.HeadDim()},
         {"intermediate_size", m.Ffn()},
         {"max_position_embeddings", m.seq_len},
         {"rms_norm_eps", m.norm_eps},
         {"rope_theta", m.RopeTheta()},
         {"rope_scaling", nullptr},
         {"attention_bias", false},
         {"attention_dropout", 0.0},
         {"mlp_bias", false},
         {"pretraining_tp", 1}};
    if (m.rope_scaling)
      j["rope_scaling"] = {
          {"rope_type", "llama3"},
          {"factor", m.rope_scaling->factor},
          {"low_freq_factor", m.rope_scaling->low_freq_factor},
          {"high_freq_factor", m.rope_scaling->high_freq_factor},
          {"original_max_position_embeddings", m.rope_scaling->original_max_position_embeddings}};
  }
  j["vocab_size"] = m.Vocab();
  j["tie_word_embeddings"] = m.Tied();
  j["initializer_range"] = m.init_std;
  j["bos_token_id"] = nullptr;
  j["eos_token_id"] = nullptr;
  j["torch_dtype"] = "float32";
  return DumpJson(j, {.indent = 2}) + "\n";
}

std::string HuggingFaceGenerationText() {
  return DumpJson(nlohmann::ordered_json{{"_from_model_config", true},
                                         {"bos_token_id", nullptr},
                                         {"eos_token_id", nullptr}},
                  {.indent = 2}) +
         "\n";
}

}  // namespace millrace
