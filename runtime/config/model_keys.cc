#include "runtime/config/key_rows.h"

namespace millrace {
namespace {

// The object behind a nullable section: made when a key in it is set, its
// defaults when one is read.
RopeScalingConfig& Made(std::optional<RopeScalingConfig>& section) {
  return section ? *section : section.emplace();
}
const RopeScalingConfig& Made(const std::optional<RopeScalingConfig>& section) {
  static const RopeScalingConfig kDefaults;
  return section ? *section : kDefaults;
}

#define ROPE_KEY(field, ...)        \
  Required(MakeKey(                 \
      "model.rope_scaling." #field, \
      [](auto& c) -> auto& { return Made(c.model.rope_scaling).field; }, __VA_ARGS__))

std::vector<Key> TrunkKeys() {
  return {
      KEY(model.family, any,
          "Architecture: GPT-2 (learned positions, LayerNorm); Llama (RoPE, RMSNorm); Qwen3 (Llama "
          "with QK-norm), dense and with experts; Nemotron-H (a pattern of Mamba-2, attention, MLP "
          "and experts, without positions)."),
      KEY(model.pattern, any,
          "A character per block: `M` Mamba-2, `E` mixture of experts, `*` attention, `-` MLP. "
          "nemotron_h needs one. Of qwen3_moe, whose blocks are attention and one of the two, `E` "
          "and `-`; null: all `E`. The other families have none."),
      KEY(model.layers, From(1, 10000), "Blocks, where no pattern says them."),
      KEY(model.d_model, From(1, kMillion),
          "Width of the residual stream; a multiple of `model.heads`."),
      KEY(model.heads, From(1, 10000), "Query heads."),
      KEY(model.kv_heads, From(1, 10000),
          "Key and value heads; divides `model.heads`. null: equal to it. gpt2 has no other "
          "choice."),
      KEY(model.head_dim, From(1, 65536),
          "Width of a head; even with rotary positions. null: `d_model / heads`."),
      KEY(model.ffn, From(1, 10 * kMillion),
          "Hidden width of an MLP. null: `8/3 d_model`, up to a multiple of 256, for swiglu; `4 "
          "d_model` for others."),
      KEY(model.vocab, From(1, 10 * kMillion),
          "Vocabulary. At least 256 for bytes; needed for `data.kind: tokens`. null: 256."),
      KEY(model.seq_len, From(1, 4194304), "Tokens per sequence, and positions of gpt2."),
      KEY(model.tied, any,
          "Output layer shares the embedding's weights. null: true for gpt2, false for others."),
      KEY(model.activation, any,
          "Of MLPs and experts. gpt2: `gelu` (the tanh approximation, `gelu_new`); llama, qwen3, "
          "qwen3_moe: `swiglu`; nemotron_h: any, `relu2` (the square of relu) if null."),
      KEY(model.norm_eps, kFloat32, "Added to the variance in LayerNorm and RMSNorm."),
      KEY(model.rope_theta, kFloat32, "Base of the rotary frequencies. null: 10000."),
      KEY(model.init_std, From(0, 10), "Standard deviation of the initial weights."),
      KEY(model.init_from, any,
          "Hugging Face folder (config.json, safetensors) to start from; model keys given here "
          "must agree with it. null: random."),
  };
}

std::vector<Key> RopeScalingKeys() {
  return {
      ROPE_KEY(rope_type, any, "Kind of rotary frequency scaling."),
      ROPE_KEY(factor, AtLeast(1), "Divides the lowest frequencies."),
      ROPE_KEY(low_freq_factor, Above(0),
               "Wavelengths above original positions / this are scaled in full."),
      ROPE_KEY(high_freq_factor, Above(0), "Wavelengths below original positions / this are kept."),
      ROPE_KEY(original_max_position_embeddings, From(1, 1000 * kMillion),
               "Positions that the unscaled model was trained on."),
  };
}

std::vector<Key> AttentionKeys() {
  return {
      KEY(model.attention.rope, any,
          "Rotary positions. null: the family's: not nemotron_h, which has no positions."),
      KEY(model.attention.qk_norm, any,
          "RMSNorm of each query and key head, ahead of the rotation. null: the family's: qwen3, "
          "qwen3_moe."),
      KEY(model.attention.window, From(1, 4194304),
          "Tokens that a token sees: itself and those just before it. null: all before it."),
  };
}

std::vector<Key> MoeKeys() {
  return {
      KEY(model.moe.experts, From(1, 1024), "Experts of a block."),
      KEY(model.moe.top_k, From(1, 32), "Experts that compute a token."),
      KEY(model.moe.ffn, From(1, 10 * kMillion), "Hidden width of an expert."),
      KEY(model.moe.router, any,
          "Scores of a token's experts: `softmax` over all, or the `sigmoid` of each. null: "
          "sigmoid for nemotron_h, softmax for others."),
      KEY(model.moe.bias, any,
          "A correction of the scores that chooses experts and does not weigh them, moved against "
          "the load after each step. null: true for nemotron_h."),
      KEY(model.moe.groups, From(1, 1024),
          "Equal groups of experts, of which `top_groups` may be chosen from."),
      KEY(model.moe.top_groups, From(1, 1024),
          "Groups that a token's experts are from: those with the largest sum of two scores."),
      KEY(model.moe.normalise, any, "Divide the chosen scores by their sum."),
      KEY(model.moe.scaling, kFloat32, "Factor of the weights of chosen experts."),
      KEY(model.moe.shared_ffn, From(1, 10 * kMillion),
          "Hidden width of an expert that computes every token. null: there is none."),
      KEY(model.moe.aux_loss, any,
          "Loss that evens the experts' loads: `switch` of each block, `sequence` of each sequence "
          "of each block, `pooled` over all blocks as Hugging Face does. Blocks of `model.mtp` "
          "take part. `sequence` beside `parallel.tensor` takes a `micro_batch` that is a multiple "
          "of `tensor * tensor_strips`, or one that divides `tensor_strips` (1 always does)."),
      KEY(model.moe.aux_coefficient, From(0, 1000), "Factor of that loss."),
      KEY(model.moe.bias_rate, From(0, 1000),
          "Step of the bias, after each training step: up for an expert whose load is below the "
          "mean, down for one above."),
      KEY(model.moe.gate, any,
          "Who chooses a token's experts: the `router`; or, for benchmarks only, a fixed pattern "
          "that gives every expert as many tokens as any other, weighed by the router's scores "
          "(`balanced`). A model trained so cannot be exported or generate."),
      KEY(model.moe.receive_capacity, From(1, kMillion),
          "Room in receive buffers along `parallel.expert`, over what even loads need. A step that "
          "a rank has no room for is skipped on all ranks; its batch is a step of its own two "
          "steps later or more, with room for all rows. No other step has other bits. null: room "
          "for all rows."),
  };
}

std::vector<Key> MambaKeys() {
  return {
      KEY(model.mamba.heads, From(1, 65536), "Heads of a Mamba-2 mixer."),
      KEY(model.mamba.head_dim, From(1, 65536), "Width of such a head."),
      KEY(model.mamba.groups, From(1, 65536), "Groups of heads that share B and C."),
      KEY(model.mamba.state, From(1, 65536), "Columns of a head's state."),
      KEY(model.mamba.chunk, From(1, 65536),
          "Tokens of a chunk of the scan: decides the order of sums."),
      KEY(model.mamba.dt_min, From(0, 1000), "Least step size dt."),
      KEY(model.mamba.dt_max, kFloat32, "Largest step size dt. null: no limit."),
  };
}

std::vector<Key> MtpKeys() {
  return {
      KEY(model.mtp.depth, From(0, 6),
          "Blocks behind the trunk that predict one token further each (multi-token prediction), "
          "each from what the one before gives, with the trunk's embedding and head. 0: none. gpt2 "
          "has none."),
      KEY(model.mtp.loss_scale, From(0, 1000),
          "Factor of their losses, divided by their number; each is a mean over its own targets. "
          "Where these have weights (`data.loss_mask`, `train.loss_weights`) it is the mean by "
          "their own weights, 0 where all of them are 0."),
      KEY(model.mtp.pattern, any,
          "Branches of such a block, as in `model.pattern`. nemotron_h needs it; qwen3_moe's is "
          "`E` (null) or `-`; the others have the block of their trunk."),
  };
}

}  // namespace

std::vector<Key> ModelKeys() {
  return Joined({TrunkKeys, RopeScalingKeys, AttentionKeys, MoeKeys, MambaKeys, MtpKeys});
}

}  // namespace millrace
