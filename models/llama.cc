#include "models/llama.h"

#include <fmt/core.h>

#include <variant>

#include "models/transformer.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/norm.h"
#include "runtime/plan/nodes/rope.h"

namespace millrace {
namespace {

std::vector<ParamSpec> EmbedParams(const ModelOptions& o) {
  return {TableParam("embed.weight", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std)};
}

std::vector<ParamSpec> BlockParams(const ModelOptions& o, int64_t layer) {
  struct Kinds {
    const ModelOptions& o;
    std::string prefix;

    std::vector<ParamSpec> operator()(const AttentionShape& a) const {
      return {
          SplitHeads(MatrixParam(prefix + "attn.qkv.weight", a.qkv_rows(), o.d_model, o.init_std),
                     o.tensor, a),
          SplitColumns(MatrixParam(prefix + "attn.proj.weight", o.d_model, a.heads * a.head_dim,
                                   ResidualStd(o)),
                       o.tensor)};
    }
    std::vector<ParamSpec> operator()(const MlpShape& m) const {
      return {
          SplitRows(MatrixParam(prefix + "mlp.gate_up.weight", 2 * m.width, o.d_model, o.init_std),
                    o.tensor, {m.width, m.width}),
          SplitColumns(MatrixParam(prefix + "mlp.down.weight", o.d_model, m.width, ResidualStd(o)),
                       o.tensor)};
    }
  };
  const std::string prefix = fmt::format("h.{}.", layer);
  const auto norms = [&](const std::string& n) {
    return std::vector{NormWeightParam(prefix + "norm_" + n + ".weight", o.d_model)};
  };
  return BranchParams(o, layer, norms, Kinds{o, prefix});
}

std::vector<ParamSpec> HeadParams(const ModelOptions& o) {
  std::vector<ParamSpec> params = {NormWeightParam("norm_f.weight", o.d_model)};
  if (!o.tied)
    params.push_back(
        TableParam("lm_head.weight", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std));
  return params;
}

}  // namespace

Llama::Llama(const ModelOptions& options)
    : options_(options),
      spec_(MakeSpec(
          options, EmbedParams(options), [&](int64_t layer) { return BlockParams(options, layer); },
          HeadParams(options))) {}

ValueId Llama::EmitBlock(ForwardBuilder& b, ValueId x, const RopeTables& ropes,
                         int64_t layer) const {
  const ModelOptions& o = options_;
  const std::string p = fmt::format("h.{}.", layer), l = fmt::format("h.{}/", layer);
  const auto linear = [&](auto&& product, ValueId in, const std::string& name) {
    return product(b, in, p + name + ".weight", "", l + name);
  };
  int norms = 0;
  for (const Branch& branch : o.blocks[static_cast<size_t>(layer)].branches) {
    const std::string norm = fmt::format("norm_{}", ++norms);
    ValueId y = Norm(b, x, p + norm + ".weight", "", NormKind::kRms, static_cast<float>(o.norm_eps),
                     l + norm);  // [R, C]
    if (const auto* a = std::get_if<AttentionShape>(&branch)) {
      const HeadsAttrs heads = LocalHeads(b, *a);
      y = QkvInto(b, y, *a, p + "attn.qkv.weight", "", l + "attn.qkv");  // [R, (H+2Hkv)D]
      y = Rope(b, y, ropes.at(a->head_dim), heads, l + "attn.rope");
      y = Attention(b, y, heads, l + "attn");                            // [R, H*D]
      x = Add(b, x, linear(LinearOut, y, "attn.proj"), l + "attn.add");  // [R, C]
    } else {
      const auto& mlp = std::get<MlpShape>(branch);
      y = linear(LinearInto, y, "mlp.gate_up");                        // [R, 2F]
      y = Activation(b, y, mlp.activation, l + "mlp.act");             // [R, F]
      x = Add(b, x, linear(LinearOut, y, "mlp.down"), l + "mlp.add");  // [R, C]
    }
  }
  return x;
}

void Llama::EmitForward(ForwardBuilder& b, HeadMode head) const {
  RopeTables ropes;
  for (const BlockShape& block : options_.blocks)
    for (const Branch& branch : block.branches)
      if (const auto* a = std::get_if<AttentionShape>(&branch); a && !ropes.contains(a->head_dim))
        ropes[a->head_dim] = RopeTable(b, a->head_dim, options_.rope_theta, options_.rope_scaling);
  b.BeginUnit("embed");
  ValueId x = Embedding(b, "embed.weight", "", "embed/x");
  for (const BlockGroup& group : GroupBlocks(options_)) {
    b.BeginUnit(group.unit);
    for (int64_t i = group.first; i <= group.last; ++i) x = EmitBlock(b, x, ropes, i);
  }
  b.BeginUnit("head");
  x = Norm(b, x, "norm_f.weight", "", NormKind::kRms, static_cast<float>(options_.norm_eps),
           "head/norm_f");
  Head(b, x, options_.tied ? "embed.weight" : "lm_head.weight", head);
}

}  // namespace millrace
