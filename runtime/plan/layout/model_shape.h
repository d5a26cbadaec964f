// What makes a model another model: its family, its blocks, every size and every constant of its
// forward. The one description: configuration, models, plans, reports and checkpoints have it from
// here. How weights begin, are grouped into units or stored is not in it.
//
// Blocks need not be equal. A block is a few branches, each added to the residual stream; each kind
// of branch has a section of its own.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/ops/attention_ops.h"
#include "runtime/base/policies.h"

namespace millrace {

struct AttentionShape {
  int64_t heads = 12, kv_heads = 12, head_dim = 64;
  bool rope = true;      // rotary positions; of a family that has learned positions not looked at
  bool qk_norm = false;  // RMSNorm of each query and key head, ahead of the rotation
  int64_t window = 0;    // a token sees itself and window - 1 before it; 0: all before it
  int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
  std::vector<int64_t> qkv_parts() const {
    return {heads * head_dim, kv_heads * head_dim, kv_heads * head_dim};
  }
  bool operator==(const AttentionShape&) const = default;
};

struct MlpShape {
  int64_t width = 3072;  // columns of the activation's output
  ActivationKind activation = ActivationKind::kGelu;
  bool operator==(const MlpShape&) const = default;
};

// A mixture of experts: each token is computed by `top_k` of `experts` MLPs, which a router
// chooses, and by a shared one, if there is one.
//   score  s = softmax or sigmoid of the f32 logits
//   choose the top_k largest of s, or of s + bias; with groups, among the experts of the top_groups
//          groups only that have the largest sum of their two largest values
//   weight s of the chosen, divided by its sum if `normalise`, times `scaling`
struct MoeShape {
  int64_t experts = 8, top_k = 2;
  int64_t width = 768;  // columns of each expert's activation
  ActivationKind activation = ActivationKind::kSwiglu;
  RouterKind router = RouterKind::kSoftmax;
  bool bias = false;  // a score correction that chooses and does not weigh; no gradient
  int64_t groups = 1, top_groups = 1;
  bool normalise = true;
  double scaling = 1;
  int64_t shared_width = 0;  // 0: no shared expert
  AuxLossKind aux_loss = AuxLossKind::kNone;
  double aux_coefficient = 0;
  double bias_rate = 0;  // of the step bias += rate * sign(mean load - load)
  GateKind gate = GateKind::kRouter;
  bool operator==(const MoeShape&) const = default;
};

// A Mamba-2 mixer: `heads` states of [head_dim, state] each; heads of a group share B and C.
struct MambaShape {
  int64_t heads = 8, head_dim = 64;
  int64_t groups = 1, state = 128;
  int64_t conv = 4;     // taps of the causal convolution
  int64_t chunk = 128;  // tokens of a chunk of the scan: decides the order of sums
  // dt is clamped to [dt_min, dt_max].
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();

  int64_t inner() const { return heads * head_dim; }
  int64_t conv_columns() const { return inner() + 2 * groups * state; }
  // Of the fused input projection: z | x | B | C | dt.
  std::vector<int64_t> in_parts() const {
    return {inner(), inner(), groups * state, groups * state, heads};
  }
  bool operator==(const MambaShape&) const = default;
};

using Branch = std::variant<AttentionShape, MlpShape, MoeShape, MambaShape>;

struct BlockShape {
  std::vector<Branch> branches;  // in the order of the forward

  template <class Kind>
  const Kind* Find() const {  // the first of a kind; null: there is none
    for (const Branch& branch : branches)
      if (const Kind* found = std::get_if<Kind>(&branch)) return found;
    return nullptr;
  }
  template <class Kind>
  Kind* Find() {
    return const_cast<Kind*>(std::as_const(*this).template Find<Kind>());
  }
  bool operator==(const BlockShape&) const = default;
};

// Multi-token prediction: behind the trunk, `depth` blocks that each predict one token further,
// from the trunk's normalised output, or that of the depth before, and the embedding of the token
// that it predicted (arXiv 2412.19437). Embedding and head are the trunk's. The loss of each is
// added times loss_scale / depth.
struct MtpShape {
  int64_t depth = 0;
  double loss_scale = 0.1;
  BlockShape block;  // of each
  bool operator==(const MtpShape&) const = default;
};

struct ModelShape {
  std::string family = "gpt2";
  int64_t vocab = 256, seq_len = 1024, d_model = 768;
  bool tied = true;  // the head reads the embedding's table
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  std::vector<BlockShape> blocks;
  MtpShape mtp;

  int64_t layers() const { return static_cast<int64_t>(blocks.size()); }
  bool operator==(const ModelShape&) const = default;
};

// n blocks of attention and MLP.
std::vector<BlockShape> EqualBlocks(int64_t n, const AttentionShape& attention,
                                    const MlpShape& mlp);

// The sections of the first block where all blocks are equal, of attention without options beyond
// its sizes and of an MLP; else null.
struct EqualBlock {
  const AttentionShape* attention = nullptr;
  const MlpShape* mlp = nullptr;
  explicit operator bool() const { return attention != nullptr; }
};
EqualBlock EqualBlockOf(const ModelShape& shape);

// Equal blocks in a row.
struct BlockRun {
  int64_t first = 0, count = 0;
};
std::vector<BlockRun> RunsOf(const std::vector<BlockShape>& blocks);

// "attention 12 heads (12 kv) of 64 + mlp 3072 gelu"
std::string ToString(const BlockShape& block);

// "family=gpt2 layers=12 d_model=768 heads=12 ... rope_scaling=1/1/4/8192" for people. Until
// canonical JSON this text was a model's identity: of models with equal blocks it never changes.
std::string Words(const ModelShape& shape);
// Canonical JSON (keys in order, no blanks): another text is another model.
std::string Identity(const ModelShape& shape);

}  // namespace millrace
