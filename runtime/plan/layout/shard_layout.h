// Who owns what: where each parameter lies in its flat parameter, and how that is cut into shards.
// Depends on model, mesh, precision and update rules only; never on memory, sharding or execution
// options, so a checkpoint outlives them.
//
// For a flat parameter each axis of the mesh does one thing. Axes that *split* it cut its
// parameters along a dim (Split): ranks that differ along them have flats of the same size with
// other elements. Axes that *shard* it cut the flat into equal pieces, one for each rank. Its
// *replicas*, ranks that differ along the rest, hold the same bits. A gradient is summed over every
// axis that does not split it: those that shard and those of the replicas. Which element lies
// where: param_runs.h.
//
// A flat parameter holds the parameters of one unit that have the same FlatKey. With compute bf16
// and norms fp32, the norm parameters of all units are a unit of their own ("norms"), which is
// gathered once per step; routers' biases of all units are in it at any precision.
//
// Invariants: every param begins at a multiple of 256 bytes of the flat's narrowest dtype,
// gathered, accumulated or sent (64 elements when all are f32, 128 when one is bf16); params
// are in order and disjoint; padded_numel == ranks of the shard axes * shard_numel, shard_numel
// a multiple of that alignment; what no element covers (FlatParam::gaps) is zero in master weights,
// moments, gradients and compute weights, for ever. So is the gradient of a parameter that no node
// reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/step_ops.h"
#include "runtime/base/dtype.h"
#include "runtime/base/id_vector.h"
#include "runtime/base/mesh.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/view.h"

namespace millrace {

// One row of the precision policy. Gradients are accumulated as `grad_accumulate` and sent as
// `grad_wire`. A shard that is reduced once in a step stays grad_wire; where it is reduced in each
// microbatch (GradSync::kEvery), their sum is f32.
struct PrecisionPolicy {
  DType compute = DType::kF32;      // gather encoding of matrices, dtype of activations
  DType norm_params = DType::kF32;  // gather encoding of norm parameters
  DType grad_accumulate = DType::kF32;
  DType grad_wire = DType::kF32;
  DType moments = DType::kF32;  // what AdamW keeps: bf16 is rounded stochastically
  bool operator==(const PrecisionPolicy&) const = default;
};

// In which a parameter of a kind is gathered.
DType EncodingOf(ParamKind kind, const PrecisionPolicy& precision);

struct ParamPlacement {
  FlatId flat;
  int64_t begin = 0, end = 0;  // elements in the flat parameter, padded rows included
  UnitId unit;                 // of the model
  ParamSpec spec;
  std::vector<int64_t> dims;  // of the part that each rank's flat holds: spec.dims, split

  int64_t numel() const;  // of that part, logical elements: they come first, [begin, begin + numel)
  bool operator==(const ParamPlacement&) const = default;
};

// Parameters of one unit that agree in these are gathered, reduced and updated as one.
struct FlatKey {
  UnitId unit;                   // into ShardLayout::units
  DType encoding = DType::kF32;  // in which it is gathered
  AxisSet split;                 // axes of several ranks that split its parameters
  UpdateRule update = UpdateRule::kAdamW;
  bool trainable = true;
  LoadBalance balance = {};  // of UpdateRule::kBalance
  DType moments = DType::kF32;
  bool operator==(const FlatKey&) const = default;
};

struct FlatParam {
  // Unique: the unit's, with what is different from its first flat ("h.0@tensor") and an update
  // rule that is not AdamW ("h.0@muon").
  std::string name;
  FlatKey key;
  // Axes that cut the flat into shards: shard, and those of context, expert and tensor that have
  // several ranks and do not split it. Along `replicas` ranks hold the same.
  AxisSet shard = Axis::kShard, replicas = Axis::kReplicate;
  std::vector<ParamId> params;
  int64_t padded_numel = 0, shard_numel = 0;
  // Everything no logical element covers: alignment gaps, padded rows, tail.
  std::vector<Range> gaps;
  std::vector<Range> decay;  // logical elements with weight decay

  std::vector<StateSlot> slots() const {
    return StateSlots(key.update, key.trainable, key.moments);
  }
  bool Keeps(std::string_view slot) const;     // one of slots()
  DType DTypeOf(std::string_view slot) const;  // Error(kInternal): none of slots()
  // Ranks that differ along these hold different elements, together all of the parameters.
  AxisSet holders() const { return shard | key.split; }
  bool operator==(const FlatParam&) const = default;
};

struct LayoutUnit {
  std::string name;
  UnitRole role = UnitRole::kBlock;
  bool operator==(const LayoutUnit&) const = default;
};

struct ShardLayout {
  Mesh mesh;
  PrecisionPolicy precision;
  std::vector<FlatParam> flats;        // those of a unit together, units in order
  std::vector<ParamPlacement> params;  // by ParamId: units in order, parameters in order
  std::vector<LayoutUnit> units;       // by UnitId: the model's, then "norms" where there are such

  const FlatParam& flat(FlatId id) const { return flats[static_cast<size_t>(id.value)]; }
  const ParamPlacement& param(ParamId id) const { return params[static_cast<size_t>(id.value)]; }
  const LayoutUnit& unit(UnitId id) const { return units[static_cast<size_t>(id.value)]; }
  IdRange<FlatId> flat_ids() const { return IdsOf<FlatId>(flats.size()); }
  IdRange<ParamId> param_ids() const { return IdsOf<ParamId>(params.size()); }
  UnitRole role(FlatId id) const { return unit(flat(id).key.unit).role; }
  // The policy for a flat's gradient: `precision`, but of counts, which are exact in f32 alone.
  PrecisionPolicy PrecisionOf(FlatId id) const;
  bool IsBlock(FlatId id) const { return role(id) == UnitRole::kBlock; }
  bool operator==(const ShardLayout&) const = default;
};

// Units that have no parameters of their own have no flat. At meshes that split nothing only the
// tail depends on the world: every parameter begins at the same element.
// Error(kInternal) naming the unit or parameter: an invalid spec (ValidateModelSpec), a mesh axis
// below 1, a policy dtype that is not f32, bf16 or, but for moments, f16. Error(kConfig): a part
// that the ranks of its split do not divide.
ShardLayout PlanShards(const ModelSpec& spec, const Mesh& mesh, const PrecisionPolicy& precision);

// What a run keeps of its flat parameters between steps, and saves: slot by slot, the weights of
// all first. A flat has its own rule's slots.
struct FlatSlot {
  StateSlot slot;
  FlatId flat;
};
std::vector<FlatSlot> SavedSlots(const ShardLayout& layout);
// The slots that any flat has, the weights first.
std::vector<std::string_view> SlotNames(const ShardLayout& layout);

// One line per flat parameter, then one per parameter in it: what a golden file or a bug report
// quotes.
std::string ToString(const ShardLayout& layout);

}  // namespace millrace
