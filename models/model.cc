#include "models/model.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <variant>

#include "kernels/ops/router_ops.h"
#include "models/stack.h"
#include "runtime/base/error.h"
#include "runtime/base/policies.h"

namespace millrace {
namespace {

void RequirePositive(const char* key, int64_t value) {
  MR_REQUIRE(ErrorCode::kConfig, value >= 1, "{} is {}; at least 1 is needed", key, value);
}

void ValidateUnits(const ModelOptions& o) {
  RequirePositive("sharding.blocks_per_unit", o.blocks_per_unit);
  if (o.blocks_of_units.empty()) return;
  for (const int64_t blocks : o.blocks_of_units)
    MR_REQUIRE(ErrorCode::kConfig, blocks >= 1,
               "sharding.blocks_per_unit has a unit of {} blocks; at least 1 is needed", blocks);
  const int64_t sum =
      std::accumulate(o.blocks_of_units.begin(), o.blocks_of_units.end(), int64_t{0});
  MR_REQUIRE(ErrorCode::kConfig, sum == o.layers(),
             "sharding.blocks_per_unit lists {} blocks, model.layers is {}; they must be equal",
             sum, o.layers());
}

void Validate(const AttentionShape& a, ModelFamily family) {
  RequirePositive("model.heads", a.heads);
  RequirePositive("model.kv_heads", a.kv_heads);
  RequirePositive("model.head_dim", a.head_dim);
  MR_REQUIRE(ErrorCode::kConfig, a.heads % a.kv_heads == 0,
             "model.kv_heads is {}; it must divide model.heads, which is {}", a.kv_heads, a.heads);
  const bool rope = a.rope && family != ModelFamily::kGpt2;
  MR_REQUIRE(ErrorCode::kConfig, !rope || a.head_dim % 2 == 0,
             "model.head_dim is {}; rotary positions need an even number", a.head_dim);
  MR_REQUIRE(ErrorCode::kConfig, a.window >= 0,
             "model.attention.window is {}; at least 1 is needed", a.window);
}

// Families that have one activation only; nemotron_h has any that is not gated.
std::optional<ActivationKind> OnlyActivation(ModelFamily family) {
  if (family == ModelFamily::kNemotronH) return std::nullopt;
  return family == ModelFamily::kGpt2 ? ActivationKind::kGelu : ActivationKind::kSwiglu;
}

void Validate(const MlpShape& m, ModelFamily family) {
  RequirePositive("model.ffn", m.width);
  const std::optional<ActivationKind> only = OnlyActivation(family);
  MR_REQUIRE(ErrorCode::kConfig, !only || m.activation == *only,
             "model.activation is {}; model.family {} has {}", Name(m.activation), Name(family),
             Name(*only));
}

void Validate(const MoeShape& m, ModelFamily) {
  RequirePositive("model.moe.experts", m.experts);
  RequirePositive("model.moe.top_k", m.top_k);
  RequirePositive("model.moe.ffn", m.width);
  RequirePositive("model.moe.groups", m.groups);
  MR_REQUIRE(ErrorCode::kConfig, m.experts % m.groups == 0,
             "model.moe.groups is {}; it must divide model.moe.experts, which is {}", m.groups,
             m.experts);
  MR_REQUIRE(ErrorCode::kConfig, m.top_groups >= 1 && m.top_groups <= m.groups,
             "model.moe.top_groups is {}; it must be from 1 to model.moe.groups, which is {}",
             m.top_groups, m.groups);
  MR_REQUIRE(ErrorCode::kConfig, m.top_k <= m.experts / m.groups * m.top_groups,
             "model.moe.top_k is {}; at most {} experts can be chosen", m.top_k,
             m.experts / m.groups * m.top_groups);
  MR_REQUIRE(ErrorCode::kConfig, m.experts <= kMaxExperts && m.top_k <= kMaxTopK,
             "model.moe.experts is {} and model.moe.top_k {}; at most {} and {} are allowed",
             m.experts, m.top_k, kMaxExperts, kMaxTopK);
  MR_REQUIRE(ErrorCode::kConfig, m.bias_rate >= 0,
             "model.moe.bias_rate is {}; it may not be negative", m.bias_rate);
  MR_REQUIRE(ErrorCode::kConfig, m.shared_width >= 0,
             "model.moe.shared_ffn is {}; it may not be negative", m.shared_width);
}

void Validate(const MambaShape& m, ModelFamily) {
  RequirePositive("model.mamba.heads", m.heads);
  RequirePositive("model.mamba.head_dim", m.head_dim);
  RequirePositive("model.mamba.groups", m.groups);
  RequirePositive("model.mamba.state", m.state);
  RequirePositive("model.mamba.chunk", m.chunk);
  MR_REQUIRE(ErrorCode::kConfig, m.heads % m.groups == 0,
             "model.mamba.groups is {}; it must divide model.mamba.heads, which is {}", m.groups,
             m.heads);
  RequirePositive("model.mamba.conv", m.conv);
  MR_REQUIRE(ErrorCode::kConfig, m.dt_min >= 0 && m.dt_min < m.dt_max,
             "model.mamba.dt_min is {}; it must be at least 0 and below model.mamba.dt_max, which "
             "is {}",
             m.dt_min, m.dt_max);
}

// By whole heads, whole columns and whole experts.
void ValidateSplits(const ModelOptions& o) {
  const auto require = [&](const char* key, int64_t value) {
    MR_REQUIRE(ErrorCode::kConfig, value % o.tensor == 0,
               "parallel.tensor is {}; it must divide {}, which is {}", o.tensor, key, value);
  };
  RequirePositive("parallel.tensor", o.tensor);
  RequirePositive("parallel.expert", o.expert);
  std::vector<BlockShape> blocks = o.blocks;
  blocks.push_back(o.mtp.block);
  const bool experts = std::any_of(blocks.begin(), blocks.end(), [](const BlockShape& block) {
    return block.Find<MoeShape>() != nullptr;
  });
  MR_REQUIRE(ErrorCode::kConfig, o.expert == 1 || experts,
             "parallel.expert is {}; the model has no experts, so 1 is allowed", o.expert);
  for (const BlockShape& block : blocks) {
    if (const auto* attention = block.Find<AttentionShape>()) {
      require("model.heads", attention->heads);
      if (o.tensor % attention->kv_heads != 0) require("model.kv_heads", attention->kv_heads);
    }
    if (const auto* mlp = block.Find<MlpShape>()) require("model.ffn", mlp->width);
    if (const auto* moe = block.Find<MoeShape>())
      MR_REQUIRE(ErrorCode::kConfig, moe->experts % o.expert_ranks() == 0,
                 "parallel.expert is {}{}; it must divide model.moe.experts, which is {}", o.expert,
                 o.experts_over_tensor ? fmt::format(", times parallel.tensor {}", o.tensor) : "",
                 moe->experts);
    if (const auto* mamba = block.Find<MambaShape>()) {
      require("model.mamba.heads", mamba->heads);
      require("model.mamba.groups", mamba->groups);
    }
  }
}

void ValidateMtp(const ModelOptions& o, ModelFamily family) {
  const MtpShape& mtp = o.mtp;
  // Each has a loss; those of the next token and of balanced experts are the others.
  MR_REQUIRE(ErrorCode::kConfig, mtp.depth >= 0 && mtp.depth <= kMaxLosses - 2,
             "model.mtp.depth is {}; 0 to {} are possible", mtp.depth, kMaxLosses - 2);
  if (mtp.depth == 0) return;
  MR_REQUIRE(ErrorCode::kConfig, family != ModelFamily::kGpt2,
             "model.mtp.depth is {}; gpt2 has no such blocks", mtp.depth);
  MR_REQUIRE(ErrorCode::kConfig, o.seq_len > mtp.depth,
             "model.mtp.depth is {}; it must be less than model.seq_len, which is {}", mtp.depth,
             o.seq_len);
  MR_REQUIRE(ErrorCode::kConfig, !mtp.block.branches.empty(), "the block of model.mtp is empty");
  for (const Branch& branch : mtp.block.branches)
    std::visit([family](const auto& kind) { Validate(kind, family); }, branch);
}

void ValidateInputs(const ModelOptions& o) {
  MR_REQUIRE(ErrorCode::kConfig, !o.documents || o.mtp.depth == 0,
             "data.document_mask is true and model.mtp.depth {}; what is predicted further would "
             "be of other documents, so 0 is allowed",
             o.mtp.depth);
  if (!o.loss.policy) return;
  MR_REQUIRE(ErrorCode::kConfig, o.mtp.depth == 0,
             "train.loss is policy_gradient and model.mtp.depth {}; what is predicted further has "
             "no such loss, so 0 is allowed",
             o.mtp.depth);
}

void Validate(const ModelOptions& o, ModelFamily family) {
  RequirePositive("model.layers", o.layers());
  RequirePositive("model.d_model", o.d_model);
  RequirePositive("model.vocab", o.vocab);
  RequirePositive("model.seq_len", o.seq_len);
  ValidateUnits(o);
  for (const BlockShape& block : o.blocks) {
    MR_REQUIRE(ErrorCode::kConfig, !block.branches.empty(), "a block of the model has no branch");
    for (const Branch& branch : block.branches)
      std::visit([family](const auto& kind) { Validate(kind, family); }, branch);
  }
  ValidateMtp(o, family);
  ValidateInputs(o);
  ValidateSplits(o);
  MR_REQUIRE(ErrorCode::kConfig, o.init_std >= 0, "model.init_std is {}; it may not be negative",
             o.init_std);
  MR_REQUIRE(ErrorCode::kConfig, o.norm_eps > 0, "model.norm_eps is {}; it must be positive",
             o.norm_eps);
  MR_REQUIRE(ErrorCode::kConfig, family == ModelFamily::kGpt2 || o.rope_theta > 0,
             "model.rope_theta is {}; it must be positive", o.rope_theta);
}

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelOptions& options) {
  for (size_t i = 0; i < NamesOf(ModelFamily{}).size(); ++i) {
    const auto family = static_cast<ModelFamily>(i);
    if (Name(family) != options.family) continue;
    Validate(options, family);
    return std::make_unique<Stack>(options, family);
  }
  throw Error(ErrorCode::kConfig, "there is no model family " + options.family);
}

}  // namespace millrace
