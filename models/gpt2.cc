#include "models/gpt2.h"

#include <fmt/core.h>

#include <variant>

#include "models/transformer.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/norm.h"

namespace millrace {
namespace {

std::vector<ParamSpec> EmbedParams(const ModelOptions& o) {
  return {TableParam("embed/wte", o.vocab, PaddedVocab(o.vocab), o.d_model, o.init_std),
          TableParam("embed/wpe", o.seq_len, o.seq_len, o.d_model, o.init_std)};
}

std::vector<ParamSpec> BlockParams(const ModelOptions& o, int64_t layer) {
  struct Kinds {
    const ModelOptions& o;
    std::string prefix;

    std::vector<ParamSpec> operator()(const AttentionShape& a) const {
      return {
          SplitHeads(MatrixParam(prefix + "attn.qkv.weight", a.qkv_rows(), o.d_model, o.init_std),
                     o.tensor, a),
          SplitHeads(BiasParam(prefix + "attn.qkv.bias", a.qkv_rows()), o.tensor, a),
          SplitColumns(MatrixParam(prefix + "attn.proj.weight", o.d_model, a.heads * a.head_dim,
                                   ResidualStd(o)),
                       o.tensor),
          BiasParam(prefix + "attn.proj.bias", o.d_model)};
    }
    std::vector<ParamSpec> operator()(const MlpShape& m) const {
      return {
          SplitRows(MatrixParam(prefix + "mlp.up.weight", m.width, o.d_model, o.init_std), o.tensor,
                    {}),
          SplitRows(BiasParam(prefix + "mlp.up.bias", m.width), o.tensor, {}),
          SplitColumns(MatrixParam(prefix + "mlp.down.weight", o.d_model, m.width, ResidualStd(o)),
                       o.tensor),
          BiasParam(prefix + "mlp.down.bias", o.d_model)};
    }
  };
  const std::string prefix = fmt::format("h.{}.", layer);
  const auto norms = [&](const std::string& n) {
    return std::vector{NormWeightParam(prefix + "ln_" + n + ".weight", o.d_model),
                       NormBiasParam(prefix + "ln_" + n + ".bias", o.d_model)};
  };
  return BranchParams(o, layer, norms, Kinds{o, prefix});
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
  const auto linear = [&](auto&& product, ValueId in, const std::string& name) {
    return product(b, in, p + name + ".weight", p + name + ".bias", l + name);
  };
  int norms = 0;
  for (const Branch& branch : o.blocks[static_cast<size_t>(layer)].branches) {
    const std::string ln = fmt::format("ln_{}", ++norms);
    ValueId y = Norm(b, x, p + ln + ".weight", p + ln + ".bias", NormKind::kLayer,
                     static_cast<float>(o.norm_eps), l + ln);  // [R, C]
    if (const auto* a = std::get_if<AttentionShape>(&branch)) {
      y = QkvInto(b, y, *a, p + "attn.qkv.weight", p + "attn.qkv.bias",
                  l + "attn.qkv");                                       // [R, (H+2Hkv)D]
      y = Attention(b, y, LocalHeads(b, *a), l + "attn");                // [R, H*D]
      x = Add(b, x, linear(LinearOut, y, "attn.proj"), l + "attn.add");  // [R, C]
    } else {
      const auto& mlp = std::get<MlpShape>(branch);
      y = linear(LinearInto, y, "mlp.up");                             // [R, F]
      y = Activation(b, y, mlp.activation, l + "mlp.act");             // [R, F]
      x = Add(b, x, linear(LinearOut, y, "mlp.down"), l + "mlp.add");  // [R, C]
    }
  }
  return x;
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
