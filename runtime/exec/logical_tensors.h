// The run's state as logical tensors: what hashes, exports and checkpoints of another world size
// speak of. Layout-independent.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

class Engine;

// Calls f(param, values [param.spec.numel()]) for each parameter of which the run keeps this slot,
// in model order; values are row-major over the logical dims, without padding. A collective: every
// rank calls it and sees every tensor.
void ForEachLogicalTensor(
    Engine& engine, std::string_view slot,
    const std::function<void(const ParamPlacement&, std::span<const float>)>& f);

// Writes this rank's shards from logical tensors: `read(param)` gives the logical values [numel],
// for one parameter at a time, of those of which the run keeps this slot. Gaps become zero.
void WriteLogicalTensors(Engine& engine, std::string_view slot,
                         const std::function<std::vector<float>(const ParamPlacement&)>& read);

// XXH3-128 over (name, values) of all parameters in name order, hex; the same at any world size and
// layout. Collectives, which hold some MiB and no whole tensor.
std::string ParamHash(Engine& engine);
// The same over all other slots of every parameter: both moments.
std::string OptimizerHash(Engine& engine);

}  // namespace millrace
