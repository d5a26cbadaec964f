// Initial master weights, a function of the *logical* element alone: the same model at any world
// size, mesh, precision and padding.
//
// Formula  element i (row-major over the logical dims) of a parameter with InitKind::kNormal is
//          f32(init_std * z), z = PhiloxNormal(seed, stream, i),
//          with the 64-bit FNV-1a hash of the parameter's name as the stream. Renaming a parameter
//          therefore changes its values; reordering parameters or units does not.
//          kLogIndex: f32(log(1 + i)). kStepBias: f32(log(e^s - 1)), s = 1e-3 * 100^u, u
//          UnitUniform of the first word of PhiloxBlock(seed, stream, i): softplus of it is s,
//          from 1e-3 to 0.1.
// Source   of the last two: state-spaces/mamba, mamba_ssm/modules/mamba2.py; HF Mamba2.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

// The shard [shard_numel], f32, that `rank` of the mesh holds of the flat parameter. Gaps are +0.
// Overwrites every element. Error(kInternal): a rank outside [0, mesh.world()).
void FillShard(const ShardLayout& layout, FlatId flat, int rank, uint64_t seed, float* shard);

// The same through `room` [n >= 1], for who has no place for all of it: f(first, values) is called
// with elements [first, first + n) of the shard, which lie in `room`; of the last call there may be
// fewer. A whole shard is memory that is touched for the first time, which costs as much as the
// values.
void FillShard(const ShardLayout& layout, FlatId flat, int rank, uint64_t seed,
               std::span<float> room,
               const std::function<void(int64_t first, std::span<const float> values)>& f);

// Initial value of logical element `index` of a parameter, index in [0, param.numel()).
float InitialValue(const ParamSpec& param, uint64_t seed, int64_t index);

}  // namespace millrace
