// A family that the runtime does not know, whole in this file: its units and its forward. Blocks
// add a gated product of low rank, of another rank in each, to the residual stream.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/norm.h"
#include "tests/system/own/low_rank_node.h"

namespace millrace::test {

class LowRankFamily final : public Model {
 public:
  // A block of each rank.
  LowRankFamily(int64_t vocab, int64_t width, std::vector<int64_t> ranks)
      : ranks_(std::move(ranks)) {
    const auto matrix = [](std::string name, int64_t rows, int64_t columns) {
      return ParamSpec{.name = std::move(name),
                       .dims = {rows, columns},
                       .padded_rows = rows,
                       .init_std = 0.5,
                       .decay = true};
    };
    const auto norm = [width](std::string name) {
      return ParamSpec{.name = std::move(name),
                       .dims = {width},
                       .padded_rows = width,
                       .init = InitKind::kOnes,
                       .kind = ParamKind::kNorm};
    };
    spec_.family = "low_rank";
    spec_.vocab = spec_.padded_vocab = vocab;
    spec_.d_model = width;
    spec_.units = {{"embed", {matrix("table", vocab, width)}, UnitRole::kEmbedding}};
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const std::string p = fmt::format("b.{}.", i);
      spec_.units.push_back(
          {fmt::format("b.{}", i),
           {norm(p + "norm"), matrix(p + "up.a", ranks_[i], width),
            matrix(p + "up.b", 2 * width, ranks_[i]), matrix(p + "down.a", ranks_[i], width),
            matrix(p + "down.b", width, ranks_[i])},
           UnitRole::kBlock});
    }
    spec_.units.push_back({"head", {norm("norm"), matrix("out", vocab, width)}, UnitRole::kHead});
  }

  const ModelSpec& spec() const override { return spec_; }

  void EmitForward(ForwardBuilder& b, HeadMode head) const override {
    b.BeginUnit("embed");
    ValueId x = Embedding(b, "table", "", "x");
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const std::string unit = fmt::format("b.{}", i), p = unit + ".", l = unit + "/";
      b.BeginUnit(unit);
      ValueId y = Norm(b, x, p + "norm", "", NormKind::kRms, 1e-5f, l + "norm");        // [R, C]
      y = LowRank(b, y, p + "up.a", p + "up.b", l + "up");                              // [R, 2C]
      y = Activation(b, y, ActivationKind::kSwiglu, l + "act");                         // [R, C]
      x = Add(b, x, LowRank(b, y, p + "down.a", p + "down.b", l + "down"), l + "add");  // [R, C]
    }
    b.BeginUnit("head");
    x = Norm(b, x, "norm", "", NormKind::kRms, 1e-5f, "norm");
    Head(b, x, "out", head);
  }

 private:
  std::vector<int64_t> ranks_;
  ModelSpec spec_;
};

}  // namespace millrace::test
