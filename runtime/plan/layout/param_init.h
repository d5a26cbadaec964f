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

#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

// The shard [shard_numel], f32, that `rank` of the mesh holds of the flat parameter. Gaps are +0.
// Overwrites every element. Error(kInternal): a rank outside [0, mesh.world()).
void FillShard(const ShardLayout& layout, FlatId flat, int rank, uint64_t seed, float* shard);

// Initial value of logical element `index` of a parameter, index in [0, param.numel()).
float InitialValue(const ParamSpec& param, uint64_t seed, int64_t index);

}  // namespace millrace
