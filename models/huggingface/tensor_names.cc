#include "models/huggingface/tensor_names.h"

#include <initializer_list>

#include "runtime/base/error.h"

namespace millrace::names {
namespace {

const FamilyTable kGpt2 = {
    ModelFamily::kGpt2,
    "transformer.",
    "h.",
    {{"ln_1.weight", "ln_1.weight"},
     {"ln_1.bias", "ln_1.bias"},
     {"attn.qkv.weight", "attn.c_attn.weight", Rows::kAll, Form::kTransposed},
     {"attn.qkv.bias", "attn.c_attn.bias"},
     {"attn.proj.weight", "attn.c_proj.weight", Rows::kAll, Form::kTransposed},
     {"attn.proj.bias", "attn.c_proj.bias"},
     {"ln_2.weight", "ln_2.weight"},
     {"ln_2.bias", "ln_2.bias"},
     {"mlp.up.weight", "mlp.c_fc.weight", Rows::kAll, Form::kTransposed},
     {"mlp.up.bias", "mlp.c_fc.bias"},
     {"mlp.down.weight", "mlp.c_proj.weight", Rows::kAll, Form::kTransposed},
     {"mlp.down.bias", "mlp.c_proj.bias"}},
    {{"embed/wte", "wte.weight"},
     {"embed/wpe", "wpe.weight"},
     {"ln_f.weight", "ln_f.weight"},
     {"ln_f.bias", "ln_f.bias"}}};

const Entries kLlamaBlock = {{"norm_1.weight", "input_layernorm.weight"},
                             {"attn.qkv.weight", "self_attn.q_proj.weight", Rows::kQuery},
                             {"attn.qkv.weight", "self_attn.k_proj.weight", Rows::kKey},
                             {"attn.qkv.weight", "self_attn.v_proj.weight", Rows::kValue},
                             {"attn.proj.weight", "self_attn.o_proj.weight"},
                             {"norm_2.weight", "post_attention_layernorm.weight"},
                             {"mlp.gate_up.weight", "mlp.gate_proj.weight", Rows::kGate},
                             {"mlp.gate_up.weight", "mlp.up_proj.weight", Rows::kUp},
                             {"mlp.down.weight", "mlp.down_proj.weight"}};
const Entries kQkNorm = {{"attn.q_norm.weight", "self_attn.q_norm.weight"},
                         {"attn.k_norm.weight", "self_attn.k_norm.weight"}};
const Entries kQwen3Experts = {
    {"moe.router.weight", "mlp.gate.weight"},
    {"moe.experts.gate_up.weight", "mlp.experts.{}.gate_proj.weight", Rows::kGate, Form::kExperts},
    {"moe.experts.gate_up.weight", "mlp.experts.{}.up_proj.weight", Rows::kUp, Form::kExperts},
    {"moe.experts.down.weight", "mlp.experts.{}.down_proj.weight", Rows::kAll, Form::kExperts}};
const Entries kNemotronHBlock = {
    {"norm_1.weight", "norm.weight"},
    {"attn.qkv.weight", "mixer.q_proj.weight", Rows::kQuery},
    {"attn.qkv.weight", "mixer.k_proj.weight", Rows::kKey},
    {"attn.qkv.weight", "mixer.v_proj.weight", Rows::kValue},
    {"attn.proj.weight", "mixer.o_proj.weight"},
    {"mlp.up.weight", "mixer.up_proj.weight"},
    {"mlp.down.weight", "mixer.down_proj.weight"},
    {"mamba.in_proj.weight", "mixer.in_proj.weight"},
    {"mamba.conv.weight", "mixer.conv1d.weight", Rows::kAll, Form::kDepthwise},
    {"mamba.conv.bias", "mixer.conv1d.bias"},
    {"mamba.dt_bias", "mixer.dt_bias"},
    {"mamba.a_log", "mixer.A_log"},
    {"mamba.d", "mixer.D"},
    {"mamba.norm.weight", "mixer.norm.weight"},
    {"mamba.out_proj.weight", "mixer.out_proj.weight"},
    {"moe.router.weight", "mixer.gate.weight"},
    {"moe.router.bias", "mixer.gate.e_score_correction_bias"},
    {"moe.experts.up.weight", "mixer.experts.{}.up_proj.weight", Rows::kAll, Form::kExperts},
    {"moe.experts.down.weight", "mixer.experts.{}.down_proj.weight", Rows::kAll, Form::kExperts},
    {"moe.shared.up.weight", "mixer.shared_experts.up_proj.weight"},
    {"moe.shared.down.weight", "mixer.shared_experts.down_proj.weight"}};

Entries Together(std::initializer_list<Entries> lists) {
  Entries all;
  for (const Entries& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Llama's names, with more of them in a block.
FamilyTable LlamaTable(ModelFamily family, std::initializer_list<Entries> more) {
  return {family,
          "model.",
          "layers.",
          Together({kLlamaBlock, Together(more)}),
          {{"embed.weight", "embed_tokens.weight"}, {"norm_f.weight", "norm.weight"}}};
}

const FamilyTable kTables[] = {
    kGpt2,
    LlamaTable(ModelFamily::kLlama, {}),
    LlamaTable(ModelFamily::kQwen3, {kQkNorm}),
    LlamaTable(ModelFamily::kQwen3Moe, {kQkNorm, kQwen3Experts}),
    {ModelFamily::kNemotronH,
     "backbone.",
     "layers.",
     kNemotronHBlock,
     {{"embed.weight", "embeddings.weight"}, {"norm_f.weight", "norm_f.weight"}}}};

}  // namespace

const FamilyTable& TableOf(const ModelSpec& spec) {
  for (const FamilyTable& table : kTables)
    if (Name(table.family) == spec.family) return table;
  MR_FAIL("{} has no Hugging Face names", spec.family);
}

bool IsBuffer(std::string_view name, const FamilyTable& table) {
  if (name.starts_with(table.prefix)) name.remove_prefix(table.prefix.size());
  if (name == "rotary_emb.inv_freq") return table.family != ModelFamily::kGpt2;
  if (!name.starts_with(table.block_prefix)) return false;
  name.remove_prefix(table.block_prefix.size());
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == name.npos) return false;
  name.remove_prefix(digits);
  if (table.family != ModelFamily::kGpt2) return name == ".self_attn.rotary_emb.inv_freq";
  return name == ".attn.bias" || name == ".attn.masked_bias";
}

}  // namespace millrace::names
