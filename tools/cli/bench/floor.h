// The least time that a step's own ops take on the machine at hand, added up op by op:
//
//   matmul, attention, attention_grad   the op's own time at its own shapes, alone on the device,
//                                       on random numbers
//   all_gather, reduce_scatter, ...     the same, all ranks at once
//   other ops                           bytes read and written once / what a copy reaches here
//   step                                the longest of the streams' sums (communication may hide
//                                       behind computation), or all that the device computes on any
//                                       stream, if that is more: streams share it
// Bursts of one op run at higher clocks than a whole step can hold. A slow kernel of ours makes
// this floor higher: rates.h has one that does not contain our kernels.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"
#include "tools/cli/bench/ops.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {

// An op that was timed alone.
struct AloneRow {
  std::string op;                                     // kind and operands
  int64_t count = 0;                                  // per step
  double us = 0;                                      // of one call: the best of several batches
  double flops_per_second = 0, bytes_per_second = 0;  // wire bytes for a collective
};

struct Floor {
  double ms = 0;
  std::array<double, kStreams> stream_ms{};
  // Everything but collectives, were no SM ever idle: products at the rate of the fastest of their
  // dtype, the rest as above.
  double device_ms = 0;
  double copy_bytes_per_second = 0;       // read plus written
  std::map<std::string, double> kind_ms;  // per step, by kind of op
  std::vector<AloneRow> alone;            // longest first
};

// A collective, and the last use of the session's engine: its arena is filled with random numbers.
// Bytes per second, read plus written, of a concat between the halves of the arena.
double CopyRate(Stopwatch& watch, const Environment& environment, std::byte* arena, int64_t bytes,
                Stream& stream);

// Memory-bound ops take what their bytes take and no more: a rate that nobody measured here is no
// floor.
Machine AtCopyRate(const Machine& machine, double copy_bytes_per_second);

Floor MeasureFloor(Session& session, const Environment& environment, const Machine& machine);

nlohmann::ordered_json FloorJson(const Floor& floor);
// `step_ms`: the measured step. `rows`: of TimeOps.
std::string FloorText(const Floor& floor, double step_ms, const std::vector<OpRow>& rows);

}  // namespace millrace
