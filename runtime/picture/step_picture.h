// A step as its pictures show it, planned or measured: buffers in the arena, ops on their streams.
// Whoever has a step fills this in; page/*.js draws it.
//
// Positions are ops of the bodies laid end to end. A measured step is one body, once, without
// buffers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/stream_id.h"

namespace millrace {

struct StepPicture {
  struct Buffer {
    std::string name;
    int64_t bytes = 0;
    int cls = 0;                   // index into `classes`
    std::vector<int64_t> live;     // positions: begin, end, begin, end, ...
    std::vector<int64_t> offsets;  // in the arena: one, or one for each stay
  };
  struct Op {
    std::string kind, label;
    StreamId stream = StreamId::kCompute;
    double seconds = 0;  // each time
    double flops = 0;
    int64_t memory_bytes = 0, wire_bytes = 0;
    std::vector<int32_t> reads, writes;  // indices into `buffers`
  };
  struct Body {
    std::string name;
    int64_t begin = 0;  // position
    std::vector<Op> ops;
  };
  struct Entry {
    int body = 0, microbatch = 0;
    std::vector<int32_t> edges;      // from entry, from op, to op; from entry, ...
    std::vector<double> times = {};  // seconds from the step's begin: begin, end of each op
  };

  std::vector<std::string> classes;
  int64_t arena = 0, persistent = 0;  // bytes
  int64_t end = 0, peak = 0;          // positions: behind the last, where most bytes live
  std::vector<Buffer> buffers;
  std::vector<Body> bodies;
  std::vector<Entry> schedule;
};

// When the last op has ended; 0 without ops.
double SecondsOf(const StepPicture& step);

// Arrays instead of objects where there are thousands: a buffer is [name, bytes, class, live,
// offsets], an op [kind, stream, label, flops, memory, wire, ns, reads, writes], with kinds by
// number in "kinds".
nlohmann::json StepPictureJson(const StepPicture& step);

}  // namespace millrace
