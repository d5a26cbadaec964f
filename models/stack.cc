#include "models/stack.h"

#include <fmt/core.h>

#include <variant>

#include "models/blocks/mamba.h"
#include "models/blocks/mlp.h"
#include "models/blocks/moe.h"
#include "models/transformer.h"
#include "runtime/plan/layout/further_weights.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/documents.h"
#include "runtime/plan/nodes/attention/rope.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/moe/router.h"
#include "runtime/plan/nodes/norm.h"

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
  const auto block = [&](int64_t layer) {
    return BlockParams(options_.blocks[static_cast<size_t>(layer)],
                       ContextOf(fmt::format("h.{}", layer)));
  };
  spec_ = MakeSpec(options_, EmbedParams(), block, HeadParams());
  AddLossInputs();
  AddMtp();
  for (UnitSpec& unit : spec_.units)
    for (ParamSpec& param : unit.params)
      if (param.hidden) param.update = options_.hidden_update;
  ApplyGroups(options_.groups, &spec_);
  if (const MoeShape* balanced = BalancedShape(options_))
    spec_.losses.push_back(
        {.name = kBalanceLoss, .weight = balanced->aux_coefficient, .held_out = false});
}

void Stack::AddLossInputs() {
  LossSpec& loss = spec_.losses.front();
  const auto add = [&](const std::string& name) {
    spec_.inputs.push_back({.name = name, .dtype = DType::kF32, .source = name});
  };
  if (options_.documents) spec_.inputs.push_back({.name = "documents", .source = "documents"});
  if (options_.loss.weights) add(loss.weights = "weights");
  if (!options_.loss.policy) return;
  PolicyInputs policy{.loss = *options_.loss.policy};
  if (policy.loss.kl != 0) add(policy.reference_logprobs = "reference_logprobs");
  add(policy.old_logprobs);
  add(policy.advantages);
  loss.policy = policy;
}

// Each depth sees the tokens and predicts the targets of one position further on. Every target of
// a window counts (Batcher::valid_tokens), so of each sequence's T that the sums are divided by,
// depth k has T - k: the rest has no target. Of these the last k - 1 have no token either; what
// stands for it (EmbedOp) is seen by no position that has a target.
// Where targets have weights, depth k's are a source of their own (RolledWeights), which the engine
// scales so that their sum over the step is the count of depth k's targets. So the factor here does
// not depend on the data, and each depth's loss is a mean by the weights of its own targets.
void Stack::AddMtp() {
  const MtpShape& mtp = options_.mtp;
  for (int64_t k = 1; k <= mtp.depth; ++k) {
    const std::string unit = fmt::format("mtp.{}", k), p = unit + ".";
    UnitSpec added{unit, {}, UnitRole::kBlock};
    const auto add = [&](std::vector<ParamSpec> params) {
      for (ParamSpec& param : params) added.params.push_back(std::move(param));
    };
    add(NormParams(p + "norm_e"));
    add(NormParams(p + "norm_h"));
    for (const char* of : {"e_proj.weight", "h_proj.weight"})
      add({HiddenParam(p + of, options_.d_model, options_.d_model, options_.init_std)});
    add(BlockParams(mtp.block, ContextOf(unit)));
    add(NormParams(p + "norm_out"));
    spec_.units.push_back(std::move(added));
    spec_.inputs.push_back(
        {.name = unit + ".tokens", .source = "tokens", .shift = k, .filled = k - 1});
    spec_.inputs.push_back(
        {.name = unit + ".targets", .source = "tokens", .shift = k + 1, .filled = k});
    const double counted =
        static_cast<double>(options_.seq_len - k) / static_cast<double>(options_.seq_len);
    spec_.losses.push_back({.name = unit,
                            .weight = mtp.loss_scale / static_cast<double>(mtp.depth) / counted,
                            .targets = unit + ".targets",
                            .held_out = false});
    if (!options_.loss.weights) continue;
    const std::string weights = spec_.losses.back().weights = FurtherWeightsName(k);
    spec_.inputs.push_back({.name = weights, .dtype = DType::kF32, .source = weights});
  }
}

BranchContext Stack::ContextOf(const std::string& unit) const {
  return {options_, style_.biases, unit + ".", unit + "/"};
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

std::vector<ParamSpec> Stack::BlockParams(const BlockShape& block,
                                          const BranchContext& context) const {
  std::vector<ParamSpec> params;
  int norms = 0;
  for (const Branch& branch : block.branches) {
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
  std::vector<BlockShape> blocks = options_.blocks;
  if (options_.mtp.depth > 0) blocks.push_back(options_.mtp.block);
  for (const BlockShape& block : blocks)
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
                         const BlockShape& block, const BranchContext& context,
                         std::vector<ValueId>* router_stats) const {
  int norms = 0;
  for (const Branch& branch : block.branches) {
    const std::string norm = fmt::format("{}_{}", style_.norm_name, ++norms);
    ValueId y = EmitNorm(b, x, context.prefix + norm, context.label + norm);  // [R, C]
    y = std::visit(EmitBranch{b, y, context, ropes, router_stats}, branch);   // [R, C]
    x = Add(b, x, y, AddLabel(context.label, branch));
  }
  return x;
}

// h' = e_proj norm_e(embedding of the next token) + h_proj norm_h(h), the block, a norm: what the
// shared head and the next depth read. One product with [e_proj | h_proj] would be the same.
ValueId Stack::EmitMtp(ForwardBuilder& b, ValueId before, const RopeTables& ropes, int64_t depth,
                       HeadMode head, std::vector<ValueId>* router_stats) const {
  const std::string unit = fmt::format("mtp.{}", depth), p = unit + ".", l = unit + "/";
  b.BeginUnit(unit);
  ValueId e = Embedding(b, style_.table, "", l + "x", unit + ".tokens");
  e = Linear(b, EmitNorm(b, e, p + "norm_e", l + "norm_e"), p + "e_proj.weight", "", l + "e_proj");
  ValueId x = EmitNorm(b, before, p + "norm_h", l + "norm_h");
  x = Add(b, e, Linear(b, x, p + "h_proj.weight", "", l + "h_proj"), l + "in");
  x = EmitBlock(b, x, ropes, options_.mtp.block, ContextOf(unit), router_stats);
  x = EmitNorm(b, x, p + "norm_out", l + "norm_out");
  Head(b, x, HeadTable(), head, unit);
  return x;
}

void Stack::EmitForward(ForwardBuilder& b, HeadMode head) const {
  const RopeTables ropes = EmitRopes(b);
  b.BeginUnit("embed");
  const bool logits_only = head == HeadMode::kLogits || head == HeadMode::kNextLogits;
  // Of the next token alone.
  const bool alone =
      logits_only || head == HeadMode::kTokenLosses || head == HeadMode::kTokenScores;
  // A row that is scored or gone on with is one document.
  if (options_.documents && !alone) Documents(b, "documents");
  ValueId x = Embedding(b, style_.table, style_.positions, "embed/x");
  const MoeShape* const balanced = alone ? nullptr : BalancedShape(options_);
  std::vector<ValueId> stats;
  for (const BlockGroup& group : GroupBlocks(options_)) {
    b.BeginUnit(group.unit);
    for (int64_t i = group.first; i <= group.last; ++i)
      x = EmitBlock(b, x, ropes, options_.blocks[static_cast<size_t>(i)],
                    ContextOf(fmt::format("h.{}", i)), balanced ? &stats : nullptr);
  }
  b.BeginUnit("head");
  const auto balance = [&] {
    Balance(b, stats, balanced->aux_loss, balanced->top_k, kBalanceLoss, "head/balance");
  };
  // The blocks that predict further are training's alone: no evaluation gives their losses.
  const bool trains = head == HeadMode::kTrainLoss;
  const bool further =
      trains && options_.mtp.depth > 0 && options_.mtp.block.Find<MoeShape>() != nullptr;
  if (balanced && !further) balance();
  const std::string norm = fmt::format("{}_f", style_.norm_name);
  x = EmitNorm(b, x, norm, "head/" + norm);
  Head(b, x, HeadTable(), head);
  if (!trains) return;
  for (int64_t k = 1; k <= options_.mtp.depth; ++k)
    x = EmitMtp(b, x, ropes, k, head, balanced ? &stats : nullptr);
  if (balanced && further) balance();
}

}  // namespace millrace
