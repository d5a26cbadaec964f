// What the families share: parameter specs, and the grouping of blocks into units.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/nodes/attention/heads.h"

namespace millrace {

// [out, in], normal(std), decayed.
ParamSpec MatrixParam(std::string name, int64_t out, int64_t in, double std);
// The same between hidden states (ParamSpec::hidden); `fused`: rows of the matrices in it.
ParamSpec HiddenParam(std::string name, int64_t out, int64_t in, double std,
                      std::vector<int64_t> fused = {});
// [rows stored as padded_rows, columns], normal(std), decayed.
ParamSpec TableParam(std::string name, int64_t rows, int64_t padded_rows, int64_t columns,
                     double std);
// [n] zeros: the bias of a linear.
ParamSpec BiasParam(std::string name, int64_t n);
// [n] ones or zeros, kept in the precision of norms.
ParamSpec NormWeightParam(std::string name, int64_t n);
ParamSpec NormBiasParam(std::string name, int64_t n);
// [n], f32 whatever the precision, not decayed.
ParamSpec ExponentParam(std::string name, int64_t n, InitKind init);

// The same, split over `ranks` of the tensor axis: rows of each fused part; columns. One rank: not
// split.
ParamSpec SplitRows(ParamSpec param, int64_t ranks, std::vector<int64_t> parts);
ParamSpec SplitColumns(ParamSpec param, int64_t ranks);

// Products around what works on columns of its own on each rank (heads, hidden columns). Into it
// each rank brings the rows of all, and forms its columns; out of it each has a part of a sum, of
// which it keeps its rows; all rows where caches are kept. bias: "" for none.
ValueId LinearInto(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
                   const std::string& label);
ValueId LinearOut(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
                  const std::string& label);
// LinearInto of the fused qkv weight. Ranks above the key and value heads are several to one: then
// the weight is whole, and each takes its rows (nodes/linear_rows.h).
ValueId QkvInto(ForwardBuilder& b, ValueId x, const AttentionShape& attention,
                const std::string& weight, const std::string& bias, const std::string& label);
// The qkv weight or bias, so split.
ParamSpec SplitHeads(ParamSpec param, int64_t ranks, const AttentionShape& attention);
// The heads that each rank has, of those that the qkv rows hold.
HeadsAttrs LocalHeads(const ForwardBuilder& b, const AttentionShape& attention);

int64_t PaddedVocab(int64_t vocab);

// The standard deviation of matrices that write into the residual stream, one per branch (GPT-2,
// section 2.3).
double ResidualStd(const ModelOptions& options);

// Blocks [first, last] of one unit: "h.3", or "h.4-5".
struct BlockGroup {
  std::string unit;
  int64_t first = 0, last = 0;
};
std::vector<BlockGroup> GroupBlocks(const ModelOptions& options);

// The spec of `options` with the embedding's parameters, `block(i)` for each block, and the head's.
template <class BlockParams>
ModelSpec MakeSpec(const ModelOptions& options, std::vector<ParamSpec> embed, BlockParams&& block,
                   std::vector<ParamSpec> head) {
  ModelSpec spec;
  static_cast<ModelShape&>(spec) = options;
  spec.units.push_back({"embed", std::move(embed), UnitRole::kEmbedding});
  for (const BlockGroup& group : GroupBlocks(options)) {
    UnitSpec unit{group.unit, {}, UnitRole::kBlock};
    for (int64_t i = group.first; i <= group.last; ++i)
      for (ParamSpec& param : block(i)) unit.params.push_back(std::move(param));
    spec.units.push_back(std::move(unit));
  }
  spec.units.push_back({"head", std::move(head), UnitRole::kHead});
  spec.padded_vocab = PaddedVocab(options.vocab);
  return spec;
}

}  // namespace millrace
