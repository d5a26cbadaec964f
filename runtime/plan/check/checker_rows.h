// Whose rows an op meets: which ranks share the sequences of a value, and have a part of its rows
// each. The bytes of a wrong exchange lie as well as those of a right one; what is wrong is where
// they come from. Internal to the checker.
//
// Cut     The axes along which the ranks of one data rank have different rows of a value. Embedding
//         begins with the cut that its rank integers state; every op passes it on, a gather over
//         axes takes them away, a sum that is scattered over axes adds them. Operands that are
//         combined row by row have one cut, and an all-to-all, between ranks that have rows of
//         their own, keeps it; a product over rows (a weight gradient) ends it.
// Away    Rows that an all-to-all has brought to the ranks of their experts are other ranks' rows
//         until the next one over the same axes brings their results back: they meet no rows that
//         are at home, and neither gathers nor sums over ranks.
// Nesting Rows are cut by outer axes first: only the innermost axes of a cut can be gathered, and
//         rows can only be scattered over axes within all of it.
// Starts  Rank integers that say which rows a rank has give each row to one rank.
#pragma once

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Appends at most one violation. Plans of one rank per data rank and no all-to-all have none.
void FindRowViolations(const StepPlan& plan, const Mesh& mesh, int accumulate, Violations* found);

}  // namespace millrace
