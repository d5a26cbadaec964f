// The end of a step, norm + clip + AdamW, issued in the ways that DeepSpeed #4318 compares: a
// kernel per tensor or per flat parameter, one launch each or as graphs. It runs outside the step,
// on this rank's shards and without the collective that adds the ranks' norms, so that only the way
// of issuing differs.
//
//   launches       each kernel is launched by itself
//   three graphs   norms, clip factor and AdamW: a graph each, as the seed captures them
//   one graph      all of it
// Clipping is a factor that AdamW reads: it is no kernel per tensor here. On a device that captures
// nothing (the CPU) there are only the rows of launches.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/run/session.h"

namespace millrace {

struct UpdateRow {
  std::string name;  // "per tensor, launches"
  int64_t kernels = 0;
  int64_t launches = 0;         // what the host issues: kernels or graphs
  std::vector<double> us;       // samples: from the first kernel's launch onto an idle device to
                                // the last kernel's end, by the device's clock
  std::vector<double> host_us;  // samples: host time to issue it onto an idle device
  bool operator==(const UpdateRow&) const = default;
};

// Overwrites gradients and master weights of the session. Every rank for itself.
std::vector<UpdateRow> TimeUpdates(Session& session, const Environment& environment);

nlohmann::ordered_json UpdatesJson(const std::vector<UpdateRow>& rows);
std::string UpdatesText(const std::vector<UpdateRow>& rows);

}  // namespace millrace
