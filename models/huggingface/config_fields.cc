#include "models/huggingface/config_fields.h"

#include <algorithm>
#include <iterator>

namespace millrace {
namespace {

constexpr FixedField kCommon[] = {
    {"add_cross_attention", "[false]", "there is no encoder to attend to"},
    {"cross_attention_hidden_size", "[null]", "there is no encoder to attend to"},
    {"is_encoder_decoder", "[false]", "there is no encoder"},
    {"tie_encoder_decoder", "[false]", "there is no encoder"},
    {"chunk_size_feed_forward", "[0]", "the feed-forward is not cut into chunks"},
    {"pruned_heads", "[{}, null]", "every head is there"},
    {"quantization_config", "[null]", "weights are f32, bf16 or f16"},
    {"dtype", R"(["float32", "bfloat16", "float16", null])", "these element types can be read"},
    {"torch_dtype", R"(["float32", "bfloat16", "float16", null])",
     "these element types can be read"},
};

constexpr FixedField kNoWindow[] = {
    {"sliding_window", "[null]", "attention sees the whole context"},
    {"use_sliding_window", "[false]", "attention sees the whole context"},
};

constexpr FixedField kNoCode[] = {
    {"auto_map", "[null, {}]", "code that comes with a folder is not run"},
};

constexpr FixedField kQwen3Head[] = {
    {"architectures", R"([["Qwen3ForCausalLM"], null])", "the language model is the only head"},
};

constexpr FixedField kQwen3MoeHead[] = {
    {"architectures", R"([["Qwen3MoeForCausalLM"], null])", "the language model is the only head"},
};

constexpr FixedField kQwen3[] = {
    {"hidden_act", R"(["silu", "swish"])", "swiglu's gate is silu"},
    {"attention_bias", "[false]", "qwen3 has no biases"},
    {"attention_dropout", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"partial_rotary_factor", "[1, null]", "the whole head is rotated"},
};

constexpr FixedField kNemotronH[] = {
    {"architectures", R"([["NemotronHForCausalLM"], null])", "the language model is the only head"},
    {"mlp_hidden_act", R"(["relu2"])", "an MLP squares its relu"},
    {"attention_bias", "[false]", "nemotron_h has no biases"},
    {"mlp_bias", "[false]", "nemotron_h has no biases"},
    {"use_bias", "[false]", "nemotron_h has no biases"},
    {"mamba_proj_bias", "[false]", "nemotron_h has no biases"},
    {"use_conv_bias", "[true]", "the convolution has a bias"},
    {"conv_kernel", "[4]", "the convolution has 4 taps"},
    {"mamba_hidden_act", R"(["silu", "swish"])", "the convolution is followed by silu"},
    {"attention_dropout", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"hidden_dropout", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"residual_in_fp32", "[false]", "the residual stream has the compute dtype"},
    {"moe_latent_size", "[null]", "experts see the whole width"},
};

constexpr FixedField kGpt2[] = {
    {"architectures", R"([["GPT2LMHeadModel"], null])", "the language model is the only head"},
    {"activation_function", R"(["gelu_new", "gelu_pytorch_tanh"])",
     "gelu is its tanh approximation"},
    {"attn_pdrop", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"embd_pdrop", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"resid_pdrop", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"scale_attn_weights", "[true]", "scores are scaled by 1 / sqrt(head_dim)"},
    {"scale_attn_by_inverse_layer_idx", "[false]", "scores are scaled by 1 / sqrt(head_dim)"},
    {"reorder_and_upcast_attn", "[false]", "attention is computed in one way, with an f32 softmax"},
};

constexpr FixedField kLlama[] = {
    {"architectures", R"([["LlamaForCausalLM"], null])", "the language model is the only head"},
    {"hidden_act", R"(["silu", "swish"])", "swiglu's gate is silu"},
    {"attention_bias", "[false]", "llama has no biases"},
    {"mlp_bias", "[false]", "llama has no biases"},
    {"attention_dropout", "[0]", "there is no dropout; to train on without, write 0 there"},
    {"pretraining_tp", "[1]", "linear layers are computed whole"},
    {"partial_rotary_factor", "[1, null]", "the whole head is rotated"},
};

// Sorted. Token ids and generation defaults; what a task head other than the language model would
// use; how to run, not what; bookkeeping.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "expand",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "mamba_ssm_cache_dtype",
    "max_length",
    "min_length",
    "moe_shared_expert_overlap",
    "n_special",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_logits_to_keep",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "predict_special_tokens",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "rescale_prenorm_residual",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
    "use_mamba_kernels",
};
static_assert(std::is_sorted(std::begin(kHarmless), std::end(kHarmless)));

}  // namespace

std::span<const FixedField> CommonFixedFields() { return kCommon; }
std::span<const FixedField> Gpt2FixedFields() { return kGpt2; }
std::span<const FixedField> LlamaFixedFields() { return kLlama; }
std::span<const FixedField> Qwen3FixedFields() { return kQwen3; }
std::span<const FixedField> Qwen3HeadFields() { return kQwen3Head; }
std::span<const FixedField> Qwen3MoeHeadFields() { return kQwen3MoeHead; }
std::span<const FixedField> NemotronHFixedFields() { return kNemotronH; }
std::span<const FixedField> NoWindowFields() { return kNoWindow; }
std::span<const FixedField> NoCodeFields() { return kNoCode; }

bool IsHarmlessField(std::string_view name) {
  return std::binary_search(std::begin(kHarmless), std::end(kHarmless), name);
}

}  // namespace millrace
