#include "models/transformer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/plan/nodes/add_bias.h"
#include "runtime/plan/nodes/exchange.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/linear_rows.h"

namespace millrace {
namespace {

ParamSpec VectorParam(std::string name, int64_t n, InitKind init, ParamKind kind) {
  return {.name = std::move(name),
          .dims = {n},
          .padded_rows = n,
          .init = init,
          .init_std = 0,
          .decay = false,
          .kind = kind};
}

}  // namespace

ParamSpec MatrixParam(std::string name, int64_t out, int64_t in, double std) {
  return TableParam(std::move(name), out, out, in, std);
}

ParamSpec HiddenParam(std::string name, int64_t out, int64_t in, double std,
                      std::vector<int64_t> fused) {
  ParamSpec param = MatrixParam(std::move(name), out, in, std);
  param.hidden = true;
  param.fused = std::move(fused);
  return param;
}

ParamSpec TableParam(std::string name, int64_t rows, int64_t padded_rows, int64_t columns,
                     double std) {
  return {.name = std::move(name),
          .dims = {rows, columns},
          .padded_rows = padded_rows,
          .init = InitKind::kNormal,
          .init_std = std,
          .decay = true,
          .kind = ParamKind::kMatrix};
}

ParamSpec BiasParam(std::string name, int64_t n) {
  return VectorParam(std::move(name), n, InitKind::kZeros, ParamKind::kMatrix);
}
ParamSpec NormWeightParam(std::string name, int64_t n) {
  return VectorParam(std::move(name), n, InitKind::kOnes, ParamKind::kNorm);
}
ParamSpec NormBiasParam(std::string name, int64_t n) {
  return VectorParam(std::move(name), n, InitKind::kZeros, ParamKind::kNorm);
}

ParamSpec ExponentParam(std::string name, int64_t n, InitKind init) {
  return VectorParam(std::move(name), n, init, ParamKind::kF32);
}

ParamSpec SplitRows(ParamSpec param, int64_t ranks, std::vector<int64_t> parts) {
  if (ranks > 1) param.splits = {{Axis::kTensor, 0, std::move(parts)}};
  return param;
}

ParamSpec SplitColumns(ParamSpec param, int64_t ranks) {
  if (ranks > 1) param.splits = {{Axis::kTensor, 1, {}}};
  return param;
}

ValueId LinearInto(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
                   const std::string& label) {
  return Linear(b, GatherRows(b, x, b.row_axes(), label + ".rows"), weight, bias, label);
}

ValueId LinearOut(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
                  const std::string& label) {
  const AxisSet axes = b.mesh().Wide(Axis::kTensor);
  if (axes.empty()) return Linear(b, x, weight, bias, label);
  const ValueId part = Linear(b, x, weight, "", label);
  const ValueId sum = b.row_axes().empty() ? SumRows(b, part, axes, label + ".sum")
                                           : ScatterSumRows(b, part, axes, label + ".sum");
  return bias.empty() ? sum : AddBias(b, sum, bias, label + ".bias");
}

ParamSpec SplitHeads(ParamSpec param, int64_t ranks, const AttentionShape& attention) {
  if (attention.kv_heads % ranks != 0) return param;
  return SplitRows(std::move(param), ranks, attention.qkv_parts());
}

ValueId QkvInto(ForwardBuilder& b, ValueId x, const AttentionShape& attention,
                const std::string& weight, const std::string& bias, const std::string& label) {
  const int64_t heads = attention.heads, kv_heads = attention.kv_heads,
                head_dim = attention.head_dim;
  const int ranks = b.mesh().Size(Axis::kTensor);
  if (kv_heads % ranks == 0) return LinearInto(b, x, weight, bias, label);
  MR_CHECK(bias.empty(), "node {}: a bias of key and value heads that ranks share", label);
  const int64_t query = heads / ranks * head_dim, keys = heads * head_dim,
                values = keys + kv_heads * head_dim;
  const int alike = static_cast<int>(ranks / kv_heads);
  const AxisSet axes = Axis::kTensor;
  return LinearRows(b, GatherRows(b, x, b.row_axes(), label + ".rows"), weight,
                    {{{0, query, axes}, query},
                     {{keys, head_dim, axes, alike}, head_dim},
                     {{values, head_dim, axes, alike}, head_dim}},
                    axes, label);
}

HeadsAttrs LocalHeads(const ForwardBuilder& b, const AttentionShape& attention) {
  const int64_t ranks = b.mesh().Size(Axis::kTensor);
  return {attention.heads / ranks, std::max<int64_t>(1, attention.kv_heads / ranks),
          attention.head_dim};
}

int64_t PaddedVocab(int64_t vocab) { return RoundUp(vocab, 64); }

double ResidualStd(const ModelOptions& options) {
  int64_t branches = 0;
  for (const BlockShape& block : options.blocks)
    branches += static_cast<int64_t>(block.branches.size());
  return options.init_std / std::sqrt(static_cast<double>(branches));
}

std::vector<BlockGroup> GroupBlocks(const ModelOptions& options) {
  std::vector<BlockGroup> groups;
  const std::vector<int64_t>& listed = options.blocks_of_units;
  for (int64_t first = 0; first < options.layers(); first = groups.back().last + 1) {
    const int64_t blocks = listed.empty() ? options.blocks_per_unit : listed.at(groups.size());
    const int64_t last = std::min(first + blocks, options.layers()) - 1;
    groups.push_back(
        {first == last ? fmt::format("h.{}", first) : fmt::format("h.{}-{}", first, last), first,
         last});
  }
  return groups;
}

}  // namespace millrace
