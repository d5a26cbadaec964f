// The step that a run has timed op by op, run.dir/timeline.json: the form of `bench --trace`.
//
//   {"displayTimeUnit": "ms",
//    "otherData": {"plan_hash": "<hash>", "device": "cpu", "ranks": 2, "step": 3, "trace": {"step":
//    "eager"}}, "traceEvents": [{"ph": "M", ...},
//                    {"ph": "X", "pid": rank, "tid": stream, "name": "h.0/mlp.up", "cat": "matmul",
//                     "ts": us, "dur": us}]}
//
// Errors   kData naming the path and what is wrong.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/picture/step_picture.h"

namespace millrace {

struct RecordedTimeline {
  std::string plan_hash, device;
  std::string how;              // "eager", "instrumented replay"
  std::optional<int64_t> step;  // a bench has none
  int64_t ranks = 0;
  // By rank, ops as recorded; from the first op of all on.
  std::map<int64_t, StepPicture> steps;
};

RecordedTimeline ParseTimeline(std::string_view text, const std::string& path);
RecordedTimeline ReadTimeline(const std::string& path);

}  // namespace millrace
