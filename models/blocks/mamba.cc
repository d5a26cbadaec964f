#include "models/blocks/mamba.h"

#include <cmath>

#include "models/transformer.h"
#include "runtime/base/error.h"
#include "runtime/plan/nodes/mamba/gated_norm.h"
#include "runtime/plan/nodes/mamba/mamba_conv.h"
#include "runtime/plan/nodes/mamba/ssd_scan.h"

namespace millrace {
namespace {

// The sizes that each rank along tensor has.
MambaAttrs LocalMamba(const ForwardBuilder& b, const MambaShape& m, double eps) {
  const int64_t ranks = b.mesh().Size(Axis::kTensor);
  return {.heads = m.heads / ranks,
          .head_dim = m.head_dim,
          .groups = m.groups / ranks,
          .state = m.state,
          .chunk = m.chunk,
          .dt_min = static_cast<float>(m.dt_min),
          .dt_max = static_cast<float>(m.dt_max),
          .eps = static_cast<float>(eps)};
}

}  // namespace

// The convolution begins with the deviation of PyTorch's default, which is uniform in
// +-1/sqrt(taps), and its bias at zero; decay rates, steps and d as in mamba2.py.
std::vector<ParamSpec> MambaParams(const MambaShape& m, const BranchContext& context) {
  const ModelOptions& o = context.options;
  MR_REQUIRE(ErrorCode::kConfig, !context.biases,
             "model.family {} has biases; a block of kind mamba has none", o.family);
  const std::string p = context.prefix + "mamba.";
  const std::vector<int64_t> in = m.in_parts(), conv(in.begin() + 1, in.end() - 1);
  const auto rows = [&](ParamSpec param, std::vector<int64_t> parts) {
    return SplitRows(std::move(param), o.tensor, std::move(parts));
  };
  const double conv_std = 1 / std::sqrt(3.0 * static_cast<double>(m.conv));
  int64_t in_rows = 0;
  for (const int64_t part : in) in_rows += part;
  return {rows(HiddenParam(p + "in_proj.weight", in_rows, o.d_model, o.init_std, in), in),
          rows(MatrixParam(p + "conv.weight", m.conv_columns(), m.conv, conv_std), conv),
          rows(BiasParam(p + "conv.bias", m.conv_columns()), conv),
          rows(ExponentParam(p + "dt_bias", m.heads, InitKind::kStepBias), {}),
          rows(ExponentParam(p + "a_log", m.heads, InitKind::kLogIndex), {}),
          rows(ExponentParam(p + "d", m.heads, InitKind::kOnes), {}),
          rows(NormWeightParam(p + "norm.weight", m.inner()), {}),
          SplitColumns(HiddenParam(p + "out_proj.weight", o.d_model, m.inner(), ResidualStd(o)),
                       o.tensor)};
}

ValueId EmitMamba(ForwardBuilder& b, ValueId x, const MambaShape& m, const BranchContext& context) {
  const MambaAttrs attrs = LocalMamba(b, m, context.options.norm_eps);
  const std::string p = context.prefix + "mamba.", l = context.label + "mamba.";
  const ValueId rows = LinearInto(b, x, p + "in_proj.weight", "", l + "in_proj");
  const auto [xbc, dt] = MambaConv(b, rows, p + "conv.weight", p + "conv.bias", p + "dt_bias",
                                   attrs, l + "conv");                       // x|B|C, [R, H]
  ValueId y = SsdScan(b, xbc, dt, p + "a_log", p + "d", attrs, l + "scan");  // [R, H P]
  y = GatedNorm(b, y, rows, p + "norm.weight", attrs, l + "norm");           // [R, H P]
  return LinearOut(b, y, p + "out_proj.weight", "", l + "out_proj");         // [R, C]
}

}  // namespace millrace
