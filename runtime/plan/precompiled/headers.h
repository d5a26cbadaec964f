// What most sources of check, lower, nodes, report and schedule include, to be compiled once: see
// third_party/precompiled/precompiled.bzl. The price: whoever changes one of these, or what it
// includes, compiles all of these folders again. A source includes what it uses all the same.
#pragma once

#include "kernels/ops/cost.h"
#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/plan_op.h"
#include "runtime/plan/state_layout.h"
#include "runtime/plan/step_plan.h"
#include "third_party/precompiled/headers.h"
