// Random models whose parameters are split, fused, 3-D, padded and frozen, and meshes of every axis
// to lay them out on: what no model asks for yet.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

class SplitModels {
 public:
  explicit SplitModels(uint32_t seed) : random_(seed) {}

  int Between(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  // Up to 3 ranks along each axis, up to 24 together.
  Mesh RandomMesh() {
    Mesh mesh;
    for (const Axis axis :
         {Axis::kTensor, Axis::kShard, Axis::kExpert, Axis::kReplicate, Axis::kContext}) {
      const int size = Between(1, 3);
      if (mesh.world() * size <= 24) mesh = mesh.With(axis, size);
    }
    return mesh;
  }

  // Can be laid out on any such mesh: each part of a split is a multiple of the ranks.
  ModelSpec RandomModel() {
    ModelSpec spec;
    spec.family = "random";
    for (int u = Between(1, 3); u > 0; --u) {
      UnitSpec unit{"u" + std::to_string(spec.units.size()), {}};
      for (int p = Between(1, 6); p > 0; --p)
        unit.params.push_back(RandomParam(unit.name + ".p" + std::to_string(p)));
      spec.units.push_back(std::move(unit));
    }
    return spec;
  }

 private:
  ParamSpec RandomParam(const std::string& name) {
    ParamSpec param;
    param.name = name;
    param.dims.resize(static_cast<size_t>(Between(1, 3)));
    for (int64_t& dim : param.dims) dim = Between(1, 7);
    std::vector<AxisSet> axes = {Axis::kContext, Axis::kTensor, Axis::kExpert};
    if (Between(0, 3) == 0) axes = {Axis::kContext, {Axis::kTensor, Axis::kExpert}};
    for (size_t d = 0; d < param.dims.size() && !axes.empty(); ++d) {
      if (Between(0, 1) == 0) continue;
      Split split{axes.back(), static_cast<int>(d), {}};
      axes.pop_back();
      param.dims[d] = 0;
      // Divided by 1, 2 and 3, and by the ranks of two axes.
      const bool two_axes = split.axes == AxisSet({Axis::kTensor, Axis::kExpert});
      for (int parts = Between(1, two_axes ? 2 : 3); parts > 0; --parts) {
        split.parts.push_back(two_axes ? 36 : 6 * Between(1, 2));
        param.dims[d] += split.parts.back();
      }
      if (split.parts.size() == 1 && Between(0, 1) == 0) split.parts.clear();
      param.splits.push_back(std::move(split));
    }
    const bool rows_split = !param.splits.empty() && param.splits.front().dim == 0;
    param.padded_rows = param.dims[0] + (rows_split ? 0 : Between(0, 1) * Between(0, 5));
    param.decay = Between(0, 1) == 0;
    param.trainable = Between(0, 3) != 0;
    if (Between(0, 4) == 0) param.kind = ParamKind::kNorm;
    return param;
  }

  std::mt19937 random_;
};

}  // namespace millrace
