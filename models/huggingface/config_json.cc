#include "models/huggingface/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/huggingface/field_reader.h"
#include "models/huggingface/nemotron_h_fields.h"
#include "models/huggingface/rope_fields.h"

namespace millrace {
namespace {

using Json = FieldReader::Json;

ModelConfig ReadGpt2(FieldReader& f) {
  ModelConfig m;
  m.family = ModelFamily::kGpt2;
  m.layers = f.Size("n_layer");
  m.d_model = f.Size("n_embd");
  m.heads = f.Size("n_head");
  m.kv_heads = m.heads;
  m.head_dim = f.HeadDim(m, "n_embd", "n_head");
  m.ffn = f.Size("n_inner", 4 * m.d_model);
  m.vocab = f.Size("vocab_size");
  m.seq_len = f.Size("n_positions");
  const Json* context = f.Find("n_ctx");  // the older name
  if (context && *context != m.seq_len)
    f.Problem("", "n_ctx", *context, fmt::format("must equal n_positions, which is {}", m.seq_len));
  m.tied = f.Flag("tie_word_embeddings", true);
  m.activation = ActivationKind::kGelu;
  m.norm_eps = f.Number("layer_norm_epsilon", 1e-5);
  m.init_std = f.NumberFromZero("initializer_range", 0.02);
  f.CheckFixed(Gpt2FixedFields());
  f.CheckFixed(NoWindowFields());
  f.CheckFixed(NoCodeFields());
  return m;
}

// What a file of transformers leaves out is what its version of the family has.
struct LlamaDefaults {
  std::optional<int64_t> kv_heads = {}, head_dim = {}, ffn = {};  // heads; width / heads; needed
};

// Fields of Llama and of what is derived from it.
ModelConfig ReadLlamaLike(FieldReader& f, ModelFamily family, const LlamaDefaults& defaults) {
  ModelConfig m;
  m.family = family;
  m.layers = f.Size("num_hidden_layers");
  m.d_model = f.Size("hidden_size");
  m.heads = f.Size("num_attention_heads");
  m.kv_heads = f.Size("num_key_value_heads", defaults.kv_heads.value_or(m.heads));
  if (m.heads % *m.kv_heads != 0)
    f.Add(fmt::format("num_key_value_heads, {}, must divide num_attention_heads, {}", *m.kv_heads,
                      m.heads));
  const Json* head_dim = f.Find("head_dim");
  m.head_dim = (head_dim && !head_dim->is_null()) || defaults.head_dim
                   ? f.Size("head_dim", defaults.head_dim)
                   : f.HeadDim(m, "hidden_size", "num_attention_heads");
  if (*m.head_dim % 2 != 0)
    f.Add(fmt::format("a head has {} elements (head_dim); rotary positions need an even number",
                      *m.head_dim));
  m.ffn = f.Size("intermediate_size", defaults.ffn);
  m.vocab = f.Size("vocab_size");
  m.seq_len = f.Size("max_position_embeddings");
  m.tied = f.Flag("tie_word_embeddings", false);
  m.activation = ActivationKind::kSwiglu;
  m.norm_eps = f.Number("rms_norm_eps", 1e-6);
  m.init_std = f.NumberFromZero("initializer_range", 0.02);
  m.mtp.depth = f.MtpDepth();
  ReadRope(f, &m);
  f.CheckFixed(NoCodeFields());
  return m;
}

ModelConfig ReadLlama(FieldReader& f) {
  const ModelConfig m = ReadLlamaLike(f, ModelFamily::kLlama, {});
  f.CheckFixed(LlamaFixedFields());
  f.CheckFixed(NoWindowFields());
  return m;
}

// Qwen's rule: layers from max_window_layers on slide, if use_sliding_window and a window is given;
// layer_types, where it is written, says it layer by layer. Qwen3-MoE has neither field: all of its
// layers slide, or none. All layers are alike to us.
void ReadWindow(FieldReader& f, ModelConfig* m) {
  const bool used = f.Flag("use_sliding_window", false);
  const Json *window = f.Find("sliding_window"), *from = f.Find("max_window_layers"),
             *types = f.Find("layer_types");
  const bool slides = used && !(window && window->is_null());
  const std::string all = slides ? "sliding_attention" : "full_attention";
  if (slides) m->attention.window = f.Size("sliding_window", 4096);
  if (!slides && window && !window->is_null() && !window->is_number())
    f.Problem("", "sliding_window", *window, "must be a number, or null");
  const bool by_layer = m->family == ModelFamily::kQwen3;
  if (by_layer && slides && (!types || types->is_null()) && (!from || *from != 0))
    f.Add("use_sliding_window is true: max_window_layers must be 0, since all layers are alike");
  if (!types || types->is_null()) return;
  if (!types->is_array()) return f.Problem("", "layer_types", *types, "must be a list");
  if (std::cmp_not_equal(types->size(), m->Layers()))
    f.Problem("", "layer_types", *types, fmt::format("the model has {} layers", m->Layers()));
  for (const Json& type : *types)
    if (type != all)
      return f.Problem("", "layer_types", *types,
                       fmt::format("only {} in all layers can be honoured: all are alike", all));
}

ModelConfig ReadQwen3(FieldReader& f) {
  ModelConfig m = ReadLlamaLike(f, ModelFamily::kQwen3, {.kv_heads = 32, .head_dim = 128});
  ReadWindow(f, &m);
  f.CheckFixed(Qwen3FixedFields());
  f.CheckFixed(Qwen3HeadFields());
  return m;
}

// Blocks with experts: each decoder_sparse_step-th, but those listed in mlp_only_layers.
void ReadSparsePattern(FieldReader& f, ModelConfig* m) {
  const int64_t step = f.Size("decoder_sparse_step", 1);
  const Json* dense = f.Find("mlp_only_layers");
  const auto is_layer = [&](const Json& layer) {
    return layer.is_number_integer() && layer >= 0 && layer < m->layers;
  };
  if (dense && !dense->is_null() &&
      !(dense->is_array() && std::all_of(dense->begin(), dense->end(), is_layer)))
    f.Problem("", "mlp_only_layers", *dense,
              fmt::format("must be a list of layers, from 0 to {}", m->layers - 1));
  std::string pattern;
  for (int64_t i = 0; i < m->layers; ++i) {
    const bool listed = dense && dense->is_array() &&
                        std::find(dense->begin(), dense->end(), Json(i)) != dense->end();
    pattern += !listed && (i + 1) % step == 0 ? 'E' : '-';
  }
  if (pattern.find('-') == std::string::npos) return;
  m->pattern = pattern;
  m->layers = ModelConfig().layers;
}

ModelConfig ReadQwen3Moe(FieldReader& f) {
  ModelConfig m = ReadLlamaLike(f, ModelFamily::kQwen3Moe, {.kv_heads = 4, .ffn = 6144});
  if (m.layers <= 10000) ReadSparsePattern(f, &m);
  // transformers 5 writes another name than it documents.
  const bool renamed = f.Find("num_local_experts") != nullptr;
  if (renamed && f.Find("num_experts") && *f.Find("num_experts") != *f.Find("num_local_experts"))
    f.Add("num_experts and num_local_experts disagree");
  m.moe.experts = f.Size(renamed ? "num_local_experts" : "num_experts", 128);
  m.moe.top_k = f.Size("num_experts_per_tok", 8);
  m.moe.ffn = f.Size("moe_intermediate_size", 768);
  m.moe.normalise = f.Flag("norm_topk_prob", false);
  // What it adds to a training loss, if it is asked to: not a part of the model.
  for (const char* field : {"router_aux_loss_coef", "output_router_logits"}) f.Find(field);
  if (!m.Has('-')) m.ffn = {};
  ReadWindow(f, &m);
  f.CheckFixed(Qwen3FixedFields());
  f.CheckFixed(Qwen3MoeHeadFields());
  return m;
}

struct Family {
  ModelFamily family;
  ModelConfig (*read)(FieldReader& f);
};
constexpr Family kFamilies[] = {{ModelFamily::kGpt2, ReadGpt2},
                                {ModelFamily::kLlama, ReadLlama},
                                {ModelFamily::kQwen3, ReadQwen3},
                                {ModelFamily::kQwen3Moe, ReadQwen3Moe},
                                {ModelFamily::kNemotronH, ReadNemotronH}};
constexpr const char* kReadable = "gpt2, llama, qwen3, qwen3_moe and nemotron_h can be read";

}  // namespace

ModelConfig ModelFromHuggingFace(std::string_view text, const std::string& name) {
  FieldReader f(text, name);
  const Json* type = f.Find("model_type");
  const Family* found = nullptr;
  for (const Family& family : kFamilies)
    if (type && *type == std::string(Name(family.family))) found = &family;
  if (!type) f.Add(fmt::format("model_type is missing; {}", kReadable));
  if (type && !found) f.Problem("", "model_type", *type, fmt::format("only {}", kReadable));
  f.ThrowIfAny();  // the other fields mean nothing without it
  const ModelConfig model = found->read(f);
  f.CheckFixed(CommonFixedFields());
  f.CheckUnknown();
  f.ThrowIfAny();
  f.CheckRanges(model);
  f.ThrowIfAny();
  return model;
}

}  // namespace millrace
