// What an update rule does in a step: the ops that change the master weights and the rule's state
// slots (runtime/plan/layout/update_rule.h) by a gradient. Internal to runtime/plan.
#pragma once

#include "runtime/plan/schedule/step_builder.h"

namespace millrace {

// Emits the update of this rank's shard by the rule of the flat's key, into the body being built.
// `grad`: the step's final gradient [shard_numel], or the counts that the rule follows.
void EmitUpdate(StepBuilder& builder, FlatId flat, const View& grad);

}  // namespace millrace
