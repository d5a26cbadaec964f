#include "models/blocks/attention.h"

#include "models/transformer.h"
#include "runtime/plan/nodes/attention/attention.h"
#include "runtime/plan/nodes/attention/head_norm.h"
#include "runtime/plan/nodes/attention/rope.h"

namespace millrace {

std::vector<ParamSpec> AttentionParams(const AttentionShape& a, const BranchContext& context) {
  const ModelOptions& o = context.options;
  const std::string qkv = context.prefix + "attn.qkv", proj = context.prefix + "attn.proj";
  std::vector<ParamSpec> params = {
      SplitHeads(HiddenParam(qkv + ".weight", a.qkv_rows(), o.d_model, o.init_std, a.qkv_parts()),
                 o.tensor, a)};
  if (context.biases)
    params.push_back(SplitHeads(BiasParam(qkv + ".bias", a.qkv_rows()), o.tensor, a));
  if (a.qk_norm)
    for (const char* norm : {"attn.q_norm.weight", "attn.k_norm.weight"})
      params.push_back(NormWeightParam(context.prefix + norm, a.head_dim));
  params.push_back(SplitColumns(
      HiddenParam(proj + ".weight", o.d_model, a.heads * a.head_dim, ResidualStd(o)), o.tensor));
  if (context.biases) params.push_back(BiasParam(proj + ".bias", o.d_model));
  return params;
}

ValueId EmitAttention(ForwardBuilder& b, ValueId x, const AttentionShape& a,
                      const BranchContext& context, const RopeTables& ropes) {
  const std::string p = context.prefix + "attn.", l = context.label + "attn";
  const auto bias = [&](const char* of) { return context.biases ? p + of + ".bias" : ""; };
  const HeadsAttrs heads = LocalHeads(b, a);
  ValueId y = QkvInto(b, x, a, p + "qkv.weight", bias("qkv"), l + ".qkv");  // [R, (H+2Hkv)D]
  if (a.qk_norm)
    y = HeadNorm(b, y, p + "q_norm.weight", p + "k_norm.weight", heads,
                 static_cast<float>(context.options.norm_eps), l + ".qk_norm");
  if (const auto rope = ropes.find(a.head_dim); a.rope && rope != ropes.end())
    y = Rope(b, y, rope->second, heads, l + ".rope");
  y = Attention(b, y, heads, l, a.window);                               // [R, H*D]
  return LinearOut(b, y, p + "proj.weight", bias("proj"), l + ".proj");  // [R, C]
}

}  // namespace millrace
