// The section `model` of the configuration, and what a family's null values stand for. config.h
// says how such structs are read.
//
// A model is a row of blocks, a character each as Nemotron writes them: M a Mamba-2 mixer, E a
// mixture of experts, * attention, - an MLP. A block of a Transformer is attention followed by an
// MLP (-) or a mixture of experts (E).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/policies.h"

namespace millrace {

// What a family is: a preset of the stack that models/stack.cc builds.
struct FamilyTraits {
  bool tied = false;
  bool rope = true;  // false: of gpt2, learned positions; of nemotron_h, none
  bool qk_norm = false;
  ActivationKind activation = ActivationKind::kSwiglu;
  bool one_activation = true;  // no other may be asked for
  bool one_attention = false;  // model.attention says nothing
  // Blocks that a pattern may have, and the one that a null pattern repeats; ' ': a pattern is
  // needed. One choice: the pattern is null.
  std::string_view blocks = "-";
  char block = '-';
  bool branch_per_block = false;  // a block is one branch, not attention and another
  RouterKind router = RouterKind::kSoftmax;
  bool router_bias = false;
};
const FamilyTraits& TraitsOf(ModelFamily family);

// Llama 3.1's frequency scaling, with Hugging Face's field names.
struct RopeScalingConfig {
  enum class Type { kLlama3 };
  Type rope_type = Type::kLlama3;
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeScalingConfig&) const = default;
};

struct AttentionConfig {
  std::optional<bool> rope = {};
  std::optional<bool> qk_norm = {};
  std::optional<int64_t> window = {};
  bool operator==(const AttentionConfig&) const = default;
};

struct MoeConfig {
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t ffn = 768;
  std::optional<RouterKind> router = {};
  std::optional<bool> bias = {};
  int64_t groups = 1;
  int64_t top_groups = 1;
  bool normalise = true;
  double scaling = 1;
  std::optional<int64_t> shared_ffn = {};
  AuxLossKind aux_loss = AuxLossKind::kNone;
  double aux_coefficient = 0.001;
  double bias_rate = 0.001;
  GateKind gate = GateKind::kRouter;
  std::optional<double> receive_capacity = {};
  bool operator==(const MoeConfig&) const = default;
};

struct MambaConfig {
  int64_t heads = 8;
  int64_t head_dim = 64;
  int64_t groups = 1;
  int64_t state = 128;
  int64_t chunk = 128;
  double dt_min = 0;
  std::optional<double> dt_max = {};
  bool operator==(const MambaConfig&) const = default;
};

struct MtpConfig {
  int64_t depth = 0;
  double loss_scale = 0.1;
  std::optional<std::string> pattern = {};
  bool operator==(const MtpConfig&) const = default;
};

struct ModelConfig {
  using Family = ModelFamily;
  using Activation = millrace::ActivationKind;
  Family family = Family::kGpt2;
  std::optional<std::string> pattern = {};
  int64_t layers = 12;
  int64_t d_model = 768;
  int64_t heads = 12;
  std::optional<int64_t> kv_heads = {};
  std::optional<int64_t> head_dim = {};
  std::optional<int64_t> ffn = {};
  std::optional<int64_t> vocab = {};
  int64_t seq_len = 1024;
  std::optional<bool> tied = {};
  std::optional<Activation> activation = {};
  double norm_eps = 1e-5;
  std::optional<double> rope_theta = {};
  std::optional<RopeScalingConfig> rope_scaling = {};
  double init_std = 0.02;
  std::optional<std::string> init_from = {};
  AttentionConfig attention;
  MoeConfig moe;
  MambaConfig mamba;
  MtpConfig mtp;

  const FamilyTraits& Traits() const { return TraitsOf(family); }
  // A character per block; without a pattern, `layers` of the family's.
  std::string Blocks() const;
  int64_t Layers() const { return pattern ? static_cast<int64_t>(pattern->size()) : layers; }
  // Whether a block has a branch of this kind; of a pattern that is missing, any may be.
  bool Has(char branch) const;
  // The branches of a block of mtp, in order; of a Transformer behind its attention.
  std::string MtpBranches() const { return mtp.pattern.value_or(std::string(1, Traits().block)); }

  int64_t KvHeads() const { return kv_heads.value_or(heads); }
  int64_t HeadDim() const { return head_dim.value_or(d_model / heads); }
  // swiglu: 8/3 d_model, up to a multiple of 256; else 4 d_model.
  int64_t Ffn() const;
  int64_t Vocab() const { return vocab.value_or(256); }
  bool Tied() const { return tied.value_or(Traits().tied); }
  Activation ActivationKind() const { return activation.value_or(Traits().activation); }
  double RopeTheta() const { return rope_theta.value_or(10000); }
  bool Rope() const { return attention.rope.value_or(Traits().rope); }
  bool QkNorm() const { return attention.qk_norm.value_or(Traits().qk_norm); }
  RouterKind Router() const { return moe.router.value_or(Traits().router); }
  bool RouterBias() const { return moe.bias.value_or(Traits().router_bias); }
  // Whether experts are chosen by a fixed pattern, as in benchmarks.
  bool BalancedGate() const { return Has('E') && moe.gate == GateKind::kBalanced; }
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace millrace
