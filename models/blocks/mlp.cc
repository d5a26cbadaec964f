#include "models/blocks/mlp.h"

#include "models/transformer.h"
#include "runtime/plan/nodes/activation.h"

namespace millrace {
namespace {

const char* InName(const MlpShape& m) { return IsGated(m.activation) ? "mlp.gate_up" : "mlp.up"; }

}  // namespace

std::vector<ParamSpec> MlpParams(const MlpShape& m, const BranchContext& context) {
  const ModelOptions& o = context.options;
  const std::string in = context.prefix + InName(m), out = context.prefix + "mlp.down";
  const int64_t rows = IsGated(m.activation) ? 2 * m.width : m.width;
  const std::vector<int64_t> parts =
      IsGated(m.activation) ? std::vector{m.width, m.width} : std::vector<int64_t>{};
  std::vector<ParamSpec> params = {
      SplitRows(HiddenParam(in + ".weight", rows, o.d_model, o.init_std, parts), o.tensor, parts)};
  if (context.biases) params.push_back(SplitRows(BiasParam(in + ".bias", rows), o.tensor, parts));
  params.push_back(
      SplitColumns(HiddenParam(out + ".weight", o.d_model, m.width, ResidualStd(o)), o.tensor));
  if (context.biases) params.push_back(BiasParam(out + ".bias", o.d_model));
  return params;
}

ValueId EmitMlp(ForwardBuilder& b, ValueId x, const MlpShape& m, const BranchContext& context) {
  const auto linear = [&](auto&& product, ValueId in, const std::string& name) {
    return product(b, in, context.prefix + name + ".weight",
                   context.biases ? context.prefix + name + ".bias" : "", context.label + name);
  };
  ValueId y = linear(LinearInto, x, InName(m));                   // [R, F] or [R, 2F]
  y = Activation(b, y, m.activation, context.label + "mlp.act");  // [R, F]
  return linear(LinearOut, y, "mlp.down");                        // [R, C]
}

}  // namespace millrace
