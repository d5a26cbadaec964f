// How a plan names bytes: a buffer, an offset, a layout. Never an address; the executor alone knows
// addresses.
//
// A plan is equal on all ranks. What depends on the rank or the microbatch is a stride in the view,
// applied when the op is bound.
#pragma once

#include <cstdint>

#include "runtime/base/mesh.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// Strong index types: two ranges cannot mix.
template <class Tag>
struct Id {
  int32_t value = -1;
  constexpr explicit operator bool() const { return value >= 0; }
  constexpr bool operator==(const Id&) const = default;
  constexpr auto operator<=>(const Id&) const = default;
};
using BufferId =
    Id<struct BufferTag>;           // into StepPlan::buffers (or Program::buffers before sharding)
using UnitId = Id<struct UnitTag>;  // into ModelSpec::units
using FlatId = Id<struct FlatTag>;  // into ShardLayout::flats
using ParamId = Id<struct ParamTag>;  // into ShardLayout::params, the model's parameters in order

struct View {
  BufferId buffer;
  int64_t offset = 0;  // elements of layout.dtype
  // + (place of the rank in its group over `rank_axes` / rank_alike) * rank_stride: RankInt.
  int64_t rank_stride = 0;
  AxisSet rank_axes = Axis::kShard;
  int rank_alike = 1;
  int64_t microbatch_stride = 0;  // + microbatch index * microbatch_stride elements
  Layout layout;

  explicit operator bool() const { return static_cast<bool>(buffer); }  // present?
  // The first element, in the buffer, on a rank of the mesh (of microbatch 0).
  int64_t FirstOn(const Mesh& mesh, int rank) const {
    return RankInt(offset, rank_stride, rank_axes, rank_alike).At(mesh, rank);
  }
  bool operator==(const View&) const = default;
};

}  // namespace millrace
