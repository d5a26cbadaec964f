// A floor of a step that none of our matrix products and collectives is part of: what the step has
// to compute and to move, at rates of the machine.
//
//   products     FLOPs of the plan's products / the best rate that large products sustain here: run
//                back to back until the card is hot, and then for a second each. On a GPU these
//                are cuBLASLt's, bf16 or f32 as the plan's are. On a host the best of five batches
//                of 20 ms.
//   attention    the plan's attention ops alone at their own shapes (floor.h), by the kernels that
//                serve them
//   memory       bytes that the other ops read and write / what a copy reaches here
//   wire         bytes that a rank sends / the machine's link rate; no latency
//   step         products + attention + memory, or wire if that is more: communication may hide
//                behind computation
// The plan decides which ops there are: recomputation counts, as does what fusing leaves out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"
#include "tools/cli/bench/floor.h"

namespace millrace {

struct ProductShape {
  int64_t m, n, k;
};
// Large products of one shape, [m,k] by [k,n], back to back.
struct SustainedRate {
  DType dtype = DType::kBF16;
  int64_t m = 0, n = 0, k = 0;
  double seconds = 0;  // measured
  double flops_per_second = 0;
};

// On a device for a second, after being hot, so that a power cap is in force. On a CPU 20 ms, the
// best of five. Overwrites the session's arena; where that has no room, of halves of the shape.
SustainedRate MeasureProduct(Session& session, const Environment& environment, Stopwatch& watch,
                             const ProductShape& wanted, DType dtype);

struct RateFloor {
  double ms = 0;
  double products_ms = 0, attention_ms = 0, memory_ms = 0, wire_ms = 0;
  double link_bytes_per_second = 0;
  std::vector<SustainedRate> products;  // every shape that was tried; the best of a dtype counts
};

// After MeasureFloor, and like it: a collective that overwrites the session's arena.
RateFloor MeasureRateFloor(Session& session, const Environment& environment, const Machine& machine,
                           const Floor& floor);

nlohmann::ordered_json RateFloorJson(const RateFloor& floor);
std::string RateFloorText(const RateFloor& floor, double step_ms);

}  // namespace millrace
