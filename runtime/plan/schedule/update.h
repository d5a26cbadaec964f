// What an update rule does in a step: the ops that change the master weights and the rule's state
// slots (runtime/plan/layout/update_rule.h) by a gradient. Internal to runtime/plan.
#pragma once

#include "runtime/plan/schedule/step_builder.h"

namespace millrace {

// What the parts of the flat are updated by, where its parameters are of groups that say so
// (PlanOptions::groups); null: by the run's own constants alone.
UpdateSegments SegmentsOf(const StepBuilder& builder, FlatId flat);

// Emits the update of this rank's shard by the rule of the flat's key, into the body being built.
// `grad`: the step's final gradient [shard_numel], or the counts that the rule follows. Nothing of
// a flat that is not trained.
void EmitUpdate(StepBuilder& builder, FlatId flat, const View& grad);

}  // namespace millrace
