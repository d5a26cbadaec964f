#include "models/gpt2.h"

#include <fmt/core.h>

#include "models/transformer.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"

namespace millrace {
namespace {

std::vector<ParamSpec> EmbedParams(const ModelOptions& o) {
  return {TableParam("embed/wte", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std),
          TableParam("embed/wpe", o.seq_len, o.seq_len, o.d_model, o.init_std)};
}

std::vector<ParamSpec> BlockParams(const ModelOptions& o, int64_t layer) {
  const std::string h = fmt::format("h.{}.", layer);
  const int64_t qkv = (o.heads + 2 * o.kv_heads) * o.head_dim;
  return {NormWeightParam(h + "ln_1.weight", o.d_model),
          NormBiasParam(h + "ln_1.bias", o.d_model),
          MatrixParam(h + "attn.qkv.weight", qkv, o.d_model, o.init_std),
          BiasParam(h + "attn.qkv.bias", qkv),
          MatrixParam(h + "attn.proj.weight", o.d_model, o.heads * o.head_dim, ResidualStd(o)),
          BiasParam(h + "attn.proj.bias", o.d_model),
          NormWeightParam(h + "ln_2.weight", o.d_model),
          NormBiasParam(h + "ln_2.bias", o.d_model),
          MatrixParam(h + "mlp.up.weight", o.ffn, o.d_model, o.init_std),
          BiasParam(h + "mlp.up.bias", o.ffn),
          MatrixParam(h + "mlp.down.weight", o.d_model, o.ffn, ResidualStd(o)),
          BiasParam(h + "mlp.down.bias", o.d_model)};
}

std::vector<ParamSpec> HeadParams(const ModelOptions& o) {
  std::vector<ParamSpec> params = {NormWeightParam("ln_f.weight", o.d_model),
                                   NormBiasParam("ln_f.bias", o.d_model)};
  if (!o.tied)
    params.push_back(
        TableParam("lm_head.weight", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std));
  return params;
}

}  // namespace

Gpt2::Gpt2(const ModelOptions& options)
    : options_(options),
      spec_(MakeSpec(
          options, EmbedParams(options), [&](int64_t layer) { return BlockParams(options, layer); },
          HeadParams(options))) {}

ValueId Gpt2::EmitBlock(ForwardBuilder& b, ValueId x, int64_t layer) const {
  const ModelOptions& o = options_;
  const std::string p = fmt::format("h.{}.", layer), l = fmt::format("h.{}/", layer);
  const HeadsAttrs heads{o.heads, o.kv_heads, o.head_dim};
  const auto norm = [&](ValueId in, const std::string& name) {
    return Norm(b, in, p + name + ".weight", p + name + ".bias", NormKind::kLayer,
                static_cast<float>(o.norm_eps), l + name);
  };
  const auto linear = [&](ValueId in, const std::string& name) {
    return Linear(b, in, p + name + ".weight", p + name + ".bias", l + name);
  };
  ValueId y = linear(norm(x, "ln_1"), "attn.qkv");        // [R, (H+2Hkv)D]
  y = Attention(b, y, heads, l + "attn");                 // [R, H*D]
  x = Add(b, x, linear(y, "attn.proj"), l + "attn.add");  // [R, C]
  y = Activation(b, linear(norm(x, "ln_2"), "mlp.up"), o.activation, l + "mlp.act");  // [R, F]
  return Add(b, x, linear(y, "mlp.down"), l + "mlp.add");                             // [R, C]
}

void Gpt2::EmitForward(ForwardBuilder& b, HeadMode head) const {
  b.BeginUnit("embed");
  ValueId x = Embedding(b, "embed/wte", "embed/wpe", "embed/x");
  for (const BlockGroup& group : GroupBlocks(options_)) {
    b.BeginUnit(group.unit);
    for (int64_t i = group.first; i <= group.last; ++i) x = EmitBlock(b, x, i);
  }
  b.BeginUnit("head");
  x = Norm(b, x, "ln_f.weight", "ln_f.bias", NormKind::kLayer,
           static_cast<float>(options_.norm_eps), "head/ln_f");
  Head(b, x, options_.tied ? "embed/wte" : "lm_head.weight", head);
}

}  // namespace millrace
