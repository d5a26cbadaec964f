#include "models/llama.h"

#include <fmt/core.h>

#include "models/transformer.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"
#include "runtime/plan/nodes/rope.h"

namespace millrace {
namespace {

std::vector<ParamSpec> EmbedParams(const ModelOptions& o) {
  return {TableParam("embed.weight", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std)};
}

std::vector<ParamSpec> BlockParams(const ModelOptions& o, int64_t layer) {
  const std::string h = fmt::format("h.{}.", layer);
  return {NormWeightParam(h + "norm_1.weight", o.d_model),
          MatrixParam(h + "attn.qkv.weight", (o.heads + 2 * o.kv_heads) * o.head_dim, o.d_model,
                      o.init_std),
          MatrixParam(h + "attn.proj.weight", o.d_model, o.heads * o.head_dim, ResidualStd(o)),
          NormWeightParam(h + "norm_2.weight", o.d_model),
          MatrixParam(h + "mlp.gate_up.weight", 2 * o.ffn, o.d_model, o.init_std),
          MatrixParam(h + "mlp.down.weight", o.d_model, o.ffn, ResidualStd(o))};
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

ValueId Llama::EmitBlock(ForwardBuilder& b, ValueId x, ValueId rope, int64_t layer) const {
  const ModelOptions& o = options_;
  const std::string p = fmt::format("h.{}.", layer), l = fmt::format("h.{}/", layer);
  const HeadsAttrs heads{o.heads, o.kv_heads, o.head_dim};
  const auto norm = [&](ValueId in, const std::string& name) {
    return Norm(b, in, p + name + ".weight", "", NormKind::kRms, static_cast<float>(o.norm_eps),
                l + name);
  };
  const auto linear = [&](ValueId in, const std::string& name) {
    return Linear(b, in, p + name + ".weight", "", l + name);
  };
  ValueId y = linear(norm(x, "norm_1"), "attn.qkv");  // [R, (H+2Hkv)D]
  y = Rope(b, y, rope, heads, l + "attn.rope");
  y = Attention(b, y, heads, l + "attn");                 // [R, H*D]
  x = Add(b, x, linear(y, "attn.proj"), l + "attn.add");  // [R, C]
  y = Activation(b, linear(norm(x, "norm_2"), "mlp.gate_up"), o.activation,
                 l + "mlp.act");                           // [R, 2F] -> [R, F]
  return Add(b, x, linear(y, "mlp.down"), l + "mlp.add");  // [R, C]
}

void Llama::EmitForward(ForwardBuilder& b, HeadMode head) const {
  const ValueId rope = RopeTable(b, options_.head_dim, options_.rope_theta, options_.rope_scaling);
  b.BeginUnit("embed");
  ValueId x = Embedding(b, "embed.weight", "", "embed/x");
  for (const BlockGroup& group : GroupBlocks(options_)) {
    b.BeginUnit(group.unit);
    for (int64_t i = group.first; i <= group.last; ++i) x = EmitBlock(b, x, rope, i);
  }
  b.BeginUnit("head");
  x = Norm(b, x, "norm_f.weight", "", NormKind::kRms, static_cast<float>(options_.norm_eps),
           "head/norm_f");
  Head(b, x, options_.tied ? "embed.weight" : "lm_head.weight", head);
}

}  // namespace millrace
