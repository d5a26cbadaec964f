#include "runtime/run/model_options.h"

#include <limits>

namespace millrace {
namespace {

AttentionShape AttentionOf(const ModelConfig& m) {
  // Of learned positions, a shape says nothing.
  const bool rope = m.family == ModelFamily::kGpt2 || m.Rope();
  return {.heads = m.heads,
          .kv_heads = m.KvHeads(),
          .head_dim = m.HeadDim(),
          .rope = rope,
          .qk_norm = m.QkNorm(),
          .window = m.attention.window.value_or(0)};
}

MlpShape MlpOf(const ModelConfig& m) {
  return {.width = m.Ffn(), .activation = m.ActivationKind()};
}

// What is idle has the value that does nothing: it is no part of a model's identity.
MoeShape MoeOf(const ModelConfig& m) {
  const MoeConfig& moe = m.moe;
  const bool aux = moe.aux_loss != AuxLossKind::kNone;
  return {.experts = moe.experts,
          .top_k = moe.top_k,
          .width = moe.ffn,
          .activation = m.ActivationKind(),
          .router = m.Router(),
          .bias = m.RouterBias(),
          .groups = moe.groups,
          .top_groups = moe.top_groups,
          .normalise = moe.normalise,
          .scaling = moe.scaling,
          .shared_width = moe.shared_ffn.value_or(0),
          .aux_loss = moe.aux_loss,
          .aux_coefficient = aux ? moe.aux_coefficient : 0,
          .bias_rate = m.RouterBias() ? moe.bias_rate : 0,
          .gate = moe.gate};
}

MambaShape MambaOf(const ModelConfig& m) {
  const MambaConfig& mamba = m.mamba;
  return {.heads = mamba.heads,
          .head_dim = mamba.head_dim,
          .groups = mamba.groups,
          .state = mamba.state,
          .chunk = mamba.chunk,
          .dt_min = mamba.dt_min,
          .dt_max = mamba.dt_max.value_or(std::numeric_limits<double>::infinity())};
}

Branch BranchOf(const ModelConfig& m, char kind) {
  switch (kind) {
    case 'M':
      return MambaOf(m);
    case 'E':
      return MoeOf(m);
    case '*':
      return AttentionOf(m);
    default:
      return MlpOf(m);
  }
}

std::vector<BlockShape> BlocksOf(const ModelConfig& m) {
  std::vector<BlockShape> blocks;
  for (const char kind : m.Blocks()) {
    BlockShape& block = blocks.emplace_back();
    if (!m.Traits().branch_per_block) block.branches.push_back(AttentionOf(m));
    block.branches.push_back(BranchOf(m, kind));
  }
  return blocks;
}

MtpShape MtpOf(const ModelConfig& m) {
  if (m.mtp.depth == 0) return {};
  MtpShape mtp{.depth = m.mtp.depth, .loss_scale = m.mtp.loss_scale, .block = {}};
  if (!m.Traits().branch_per_block) mtp.block.branches.push_back(AttentionOf(m));
  for (const char kind : m.MtpBranches()) mtp.block.branches.push_back(BranchOf(m, kind));
  return mtp;
}

LossOptions LossOf(const TrainConfig& train) {
  LossOptions loss{.weights = train.loss_weights};
  if (train.loss == TrainConfig::Loss::kPolicyGradient)
    loss.policy = PolicyLoss{.clip_low = static_cast<float>(train.policy.clip_low),
                             .clip_high = static_cast<float>(train.policy.clip_high),
                             .kl = static_cast<float>(train.policy.kl)};
  return loss;
}

}  // namespace

ParamGroups ParamGroupsOf(const OptimizerConfig& optimizer) {
  ParamGroups groups;
  for (const OptimizerGroup& from : optimizer.groups.value_or(OptimizerGroups())) {
    ParamGroup& group = groups.emplace_back();
    group.patterns = from.parameters;
    group.frozen = from.frozen;
    if (from.name)
      group.rule = *from.name == OptimizerKind::kMuon ? UpdateRule::kMuon : UpdateRule::kAdamW;
    if (from.lr) group.lr_scale = *from.lr / optimizer.lr;
    group.lr_mult = from.lr_mult.value_or(1);
    group.weight_decay = from.weight_decay;
    if (from.betas) group.beta1 = (*from.betas)[0], group.beta2 = (*from.betas)[1];
    group.eps = from.eps;
  }
  return groups;
}

ModelOptions ModelOptionsOf(const Config& config) {
  const ModelConfig& m = config.model;
  ModelOptions o;
  o.family = Name(m.family);
  o.d_model = m.d_model;
  o.blocks = BlocksOf(m);
  o.mtp = MtpOf(m);
  o.vocab = m.Vocab();
  o.seq_len = m.seq_len;
  o.tied = m.Tied();
  o.norm_eps = m.norm_eps;
  o.rope_theta = m.RopeTheta();
  if (m.rope_scaling)
    o.rope_scaling = {m.rope_scaling->factor, m.rope_scaling->low_freq_factor,
                      m.rope_scaling->high_freq_factor,
                      m.rope_scaling->original_max_position_embeddings};
  o.init_std = m.init_std;
  if (config.optimizer.name == OptimizerKind::kMuon) o.hidden_update = UpdateRule::kMuon;
  o.groups = ParamGroupsOf(config.optimizer);
  o.loss = LossOf(config.train);
  o.documents = config.data.MasksDocuments();
  // What begins a document is no target, nor is what a mask leaves out.
  o.loss.weights |= o.documents || config.data.loss_mask.value_or(false);
  o.tensor = config.parallel.tensor;
  o.expert = config.parallel.expert;
  o.experts_over_tensor = config.parallel.experts_over_tensor;
  o.receive_capacity = m.moe.receive_capacity.value_or(0);
  o.blocks_of_units = config.sharding.BlocksOfUnits(m.Layers());
  return o;
}

}  // namespace millrace
