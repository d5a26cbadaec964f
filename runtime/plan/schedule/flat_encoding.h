// Flat parameters whose matrices are gathered in FP8 (precision.gather=linear): what a program
// reads of them so, the states that ranks keep for it, and the ops that form these after each write
// of weights. Internal to runtime/plan.
//
// States  payload  e4m3 [shard_numel]: the rank's shard quantized; what gathers carry
//         scales   f32 [S]: of all matrices, on every rank
//         rest     compute dtype [R]: parameters that stay in it, whole on every rank
//         (S, R, and the table from which ranks have the last two: kernels/ops/fp8_flat_ops.h.)
//         They are in place of the compute copy that sharding.downcast=after_update keeps: formed
//         by a plan's prologue and by its update, each from master weights alone.
#pragma once

#include <string>
#include <string_view>

#include "kernels/ops/fp8_flat_ops.h"
#include "runtime/base/id_vector.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/state_layout.h"

namespace millrace {

struct StepBuilder;

inline constexpr std::string_view kPayloadSlot = "payload", kScalesSlot = "scales",
                                  kRestSlot = "rest";

// By flat parameter; null: the program reads nothing of it in FP8.
using FlatEncodings = IdVector<FlatId, FlatEncodingRef>;
FlatEncodings FlatEncodingsOf(const ShardLayout& layout, const Program& program);

// The states of a flat parameter that is encoded so.
void AddEncodedStates(const ShardLayout& layout, FlatId flat, const FlatEncoding& encoding,
                      StateLayout* states);

// Forms them from the master shard, on the gather stream. Nothing where the flat is not encoded.
void EmitEncoded(StepBuilder& b, FlatId flat);

// Where a parameter's scales lie among those of its flat, and where a parameter that is not encoded
// lies in the rest. Error(kInternal): it does not.
int64_t ScalesBegin(const FlatEncoding& encoding, const ParamPlacement& param);
int64_t RestBegin(const FlatEncoding& encoding, const ParamPlacement& param);

}  // namespace millrace
