// Draws next tokens: the end of a plan that decodes.
//
// kSampleNode  in: logits [R,Vp], params i64 [>=R,kSampleWords]: its first R rows
//              out: outputs of the plan, by name: "token" i32 [R], "logprob" f32 [R]; where some
//              likeliest tokens are asked for, N of them, "top_ids" i32 [R,N] and "top_logprobs"
//              f32 [R,N] (kernels/ops/sample_ops.h).
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kSampleNode;

// `most`: N, at most kMaxSampleTop; 0: none. Error(kInternal): shapes that do not fit together.
void Sample(ForwardBuilder& b, ValueId logits, ValueId params, int64_t most,
            const std::string& label);

}  // namespace millrace
