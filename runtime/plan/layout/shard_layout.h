// Who owns what: where each parameter lies in its flat parameter, and how that is cut into shards.
// Depends on model, mesh and precision only; never on memory, sharding or execution options, so a
// checkpoint outlives them.
//
// A flat parameter holds the parameters of one unit that share a gather encoding. With compute bf16
// and norms fp32, the norm parameters of all units form one flat parameter of their own ("norms"),
// gathered once per step.
//
// Invariants: every param begins at a multiple of 256 bytes of the flat's narrowest dtype,
// gathered, accumulated or sent (64 elements when all are f32, 128 when one is bf16); params
// are in order and disjoint; padded_numel == ranks of the shard axis * shard_numel, shard_numel
// a multiple of that alignment; gaps and tails are zero in master weights, moments, gradients and
// compute weights, for ever.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/step_ops.h"
#include "runtime/base/dtype.h"
#include "runtime/base/mesh.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/view.h"

namespace millrace {

// One row of the precision policy. Gradients: accumulated as `grad_accumulate`, sent as
// `grad_wire`, as which the gradient shard stays; the sum of several reductions is f32.
struct PrecisionPolicy {
  DType compute = DType::kF32;      // gather encoding of matrices, dtype of activations
  DType norm_params = DType::kF32;  // gather encoding of norm parameters
  DType grad_accumulate = DType::kF32;
  DType grad_wire = DType::kF32;
  bool operator==(const PrecisionPolicy&) const = default;
};

struct ParamPlacement {
  FlatId flat;
  int64_t begin = 0, end = 0;  // elements in the flat parameter, padded rows included
  UnitId unit;
  ParamSpec spec;
  bool operator==(const ParamPlacement&) const = default;
};

struct FlatParam {
  std::string name;              // the unit's name, or "norms"
  UnitId unit;                   // none for "norms"
  DType encoding = DType::kF32;  // gather encoding
  std::vector<ParamId> params;
  int64_t padded_numel = 0, shard_numel = 0;
  // Everything no logical element covers: alignment gaps, padded rows, tail.
  std::vector<Range> gaps;
  std::vector<Range> decay;  // logical elements with weight decay
  bool operator==(const FlatParam&) const = default;
};

struct ShardLayout {
  Mesh mesh;
  PrecisionPolicy precision;
  std::vector<FlatParam> flats;
  std::vector<ParamPlacement> params;  // by ParamId: units in order, parameters in order
  std::vector<UnitRole> unit_roles;    // by UnitId

  const FlatParam& flat(FlatId id) const { return flats[static_cast<size_t>(id.value)]; }
  const ParamPlacement& param(ParamId id) const { return params[static_cast<size_t>(id.value)]; }
  // Of a block unit? Flats that belong to no unit are not.
  bool IsBlock(FlatId id) const {
    const UnitId unit = flat(id).unit;
    return unit && unit_roles[static_cast<size_t>(unit.value)] == UnitRole::kBlock;
  }
  bool operator==(const ShardLayout&) const = default;
};

// One flat parameter per unit that has parameters of its own, in unit order; "norms" is the last.
// Only the tail depends on the world: every parameter begins at the same element at any mesh.
// Error(kInternal) naming the unit or parameter: an invalid spec (ValidateModelSpec), a mesh axis
// below 1, a policy dtype that is not f32 or bf16.
ShardLayout PlanShards(const ModelSpec& spec, const Mesh& mesh, const PrecisionPolicy& precision);

// One line per flat parameter, then one per parameter in it: what a golden
// file or a bug report quotes.
std::string ToString(const ShardLayout& layout);

}  // namespace millrace
