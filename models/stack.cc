#include "models/stack.h"

#include <fmt/core.h>

#include <variant>

#include "models/blocks/mamba.h"
#include "models/blocks/mlp.h"
#include "models/blocks/moe.h"
#include "models/transformer.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/norm.h"
#include "runtime/plan/nodes/rope.h"
#include "runtime/plan/nodes/router.h"

namespace millrace {
namespace {

// The cases of each kind of branch: its parameters, and its forward.
struct ParamsOfBranch {
  const BranchContext& context;

  std::vector<ParamSpec> operator()(const AttentionShape& a) const {
    return AttentionParams(a, context);
  }
  std::vector<ParamSpec> operator()(const MlpShape& m) const { return MlpParams(m, context); }
  std::vector<ParamSpec> operator()(const MoeShape& m) const { return MoeParams(m, context); }
  std::vector<ParamSpec> operator()(const MambaShape& m) const { return MambaParams(m, context); }
};

struct EmitBranch {
  ForwardBuilder& b;
  ValueId x;
  const BranchContext& context;
  const RopeTables& ropes;
  std::vector<ValueId>* router_stats;

  ValueId operator()(const AttentionShape& a) const {
    return EmitAttention(b, x, a, context, ropes);
  }
  ValueId operator()(const MlpShape& m) const { return EmitMlp(b, x, m, context); }
  ValueId operator()(const MoeShape& m) const { return EmitMoe(b, x, m, context, router_stats); }
  ValueId operator()(const MambaShape& m) const { return EmitMamba(b, x, m, context); }
};

// "h.3/attn.add": the sum behind a branch.
std::string AddLabel(const std::string& label, const Branch& branch) {
  constexpr const char* kNames[] = {"attn", "mlp", "moe", "mamba"};
  static_assert(std::size(kNames) == std::variant_size_v<Branch>);
  return label + kNames[branch.index()] + ".add";
}

}  // namespace

Stack::Style Stack::StyleOf(ModelFamily family) {
  if (family != ModelFamily::kGpt2) return {};
  return {.norm = NormKind::kLayer,
          .biases = true,
          .learned_positions = true,
          .norm_name = "ln",
          .table = "embed/wte",
          .positions = "embed/wpe"};
}

Stack::Stack(const ModelOptions& options, ModelFamily family)
    : options_(options), style_(StyleOf(family)) {
  spec_ = MakeSpec(
      options_, EmbedParams(), [&](int64_t layer) { return BlockParams(layer); }, HeadParams());
  if (const MoeShape* balanced = BalancedShape(options_))
    spec_.losses.push_back(
        {.name = kBalanceLoss, .weight = balanced->aux_coefficient, .held_out = false});
}

BranchContext Stack::ContextOf(int64_t layer) const {
  return {options_, style_.biases, fmt::format("h.{}.", layer), fmt::format("h.{}/", layer)};
}

std::vector<ParamSpec> Stack::NormParams(const std::string& name) const {
  std::vector<ParamSpec> params = {NormWeightParam(name + ".weight", options_.d_model)};
  if (style_.biases) params.push_back(NormBiasParam(name + ".bias", options_.d_model));
  return params;
}

std::vector<ParamSpec> Stack::EmbedParams() const {
  const ModelOptions& o = options_;
  std::vector<ParamSpec> params = {
      TableParam(style_.table, o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std)};
  if (style_.learned_positions)
    params.push_back(TableParam(style_.positions, o.seq_len, o.seq_len, o.d_model, o.init_std));
  return params;
}

std::vector<ParamSpec> Stack::BlockParams(int64_t layer) const {
  const BranchContext context = ContextOf(layer);
  std::vector<ParamSpec> params;
  int norms = 0;
  for (const Branch& branch : options_.blocks[static_cast<size_t>(layer)].branches) {
    for (ParamSpec& param :
         NormParams(fmt::format("{}{}_{}", context.prefix, style_.norm_name, ++norms)))
      params.push_back(std::move(param));
    for (ParamSpec& param : std::visit(ParamsOfBranch{context}, branch))
      params.push_back(std::move(param));
  }
  return params;
}

std::vector<ParamSpec> Stack::HeadParams() const {
  const ModelOptions& o = options_;
  std::vector<ParamSpec> params = NormParams(fmt::format("{}_f", style_.norm_name));
  if (!o.tied)
    params.push_back(
        TableParam("lm_head.weight", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std));
  return params;
}

RopeTables Stack::EmitRopes(ForwardBuilder& b) const {
  RopeTables ropes;
  if (style_.learned_positions) return ropes;
  for (const BlockShape& block : options_.blocks)
    for (const Branch& branch : block.branches)
      if (const auto* a = std::get_if<AttentionShape>(&branch);
          a && a->rope && !ropes.contains(a->head_dim))
        ropes[a->head_dim] = RopeTable(b, a->head_dim, options_.rope_theta, options_.rope_scaling);
  return ropes;
}

ValueId Stack::EmitNorm(ForwardBuilder& b, ValueId x, const std::string& name,
                        const std::string& label) const {
  return Norm(b, x, name + ".weight", style_.biases ? name + ".bias" : "", style_.norm,
              static_cast<float>(options_.norm_eps), label);
}

ValueId Stack::EmitBlock(ForwardBuilder& b, ValueId x, const RopeTables& ropes,
                         std::vector<ValueId>* router_stats, int64_t layer) const {
  const BranchContext context = ContextOf(layer);
  int norms = 0;
  for (const Branch& branch : options_.blocks[static_cast<size_t>(layer)].branches) {
    const std::string norm = fmt::format("{}_{}", style_.norm_name, ++norms);
    ValueId y = EmitNorm(b, x, context.prefix + norm, context.label + norm);  // [R, C]
    y = std::visit(EmitBranch{b, y, context, ropes, router_stats}, branch);   // [R, C]
    x = Add(b, x, y, AddLabel(context.label, branch));
  }
  return x;
}

void Stack::EmitForward(ForwardBuilder& b, HeadMode head) const {
  const RopeTables ropes = EmitRopes(b);
  b.BeginUnit("embed");
  ValueId x = Embedding(b, style_.table, style_.positions, "embed/x");
  const MoeShape* const balanced = head == HeadMode::kLogits ? nullptr : BalancedShape(options_);
  std::vector<ValueId> stats;
  for (const BlockGroup& group : GroupBlocks(options_)) {
    b.BeginUnit(group.unit);
    for (int64_t i = group.first; i <= group.last; ++i)
      x = EmitBlock(b, x, ropes, balanced ? &stats : nullptr, i);
  }
  b.BeginUnit("head");
  if (balanced)
    Balance(b, stats, balanced->aux_loss, balanced->top_k, kBalanceLoss, "head/balance");
  const std::string norm = fmt::format("{}_f", style_.norm_name);
  x = EmitNorm(b, x, norm, "head/" + norm);
  Head(b, x, options_.tied ? style_.table : "lm_head.weight", head);
}

}  // namespace millrace
