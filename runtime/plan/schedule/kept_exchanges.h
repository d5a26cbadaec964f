// What exchanges have brought to the forward and the backward needs again: gathered rows (tensor)
// and keys (context) that stay until then where bytes are free, in place of a second exchange.
//
// Bytes    Those within memory.budget_gib, and within the device where it is known; where
//          memory.recompute is auto and there is no budget, those of the device; else those that do
//          not raise the arena, at whose peak, mostly the end of the forward, there are none, but
//          at another's (gradients, the update) many.
//          What sharding.reshard auto keeps gathered is taken first.
// Order    By bytes received per byte held, the most first; of equal ones the last units' first,
//          whose backward comes soonest. So many of them stay that fit, or a half, a quarter, ...
//          of that, whichever step is simulated to be the fastest, none among them. With
//          sharding.reshard auto the steps compared have after_forward.
// Ranks    Plans, and with them the collectives that ranks issue, are equal on all: rates are as in
//          recompute.h, and the device is the smallest that a rank has.
//
// What experts receive is never kept: its bound exceeds its live part (plan/nodes/moe). Rows that
// a rank dispatches to its own experts come over no wire.
#pragma once

#include "runtime/plan/schedule/recompute.h"

namespace millrace {

// `choice` with the kinds of exchange that each unit keeps. Pure. Bits do not depend on it.
RecomputeChoice KeepExchanges(const RecomputeInput& input, RecomputeChoice choice);

// `units` with every exchange that may be kept, bytes or not: no plan does less (runtime/run/
// advise.h).
std::vector<UnitRecompute> KeepingAll(const SemanticGraph& forward,
                                      std::vector<UnitRecompute> units);

// "60 of 64 from forward to backward, 1966080 bytes", "none of 64"
std::string ToString(const KeptExchanges& exchanges);

}  // namespace millrace
