// A step's ops on their streams as a piece of HTML: an inline SVG with a lane for each stream that
// stretches to any width, its labels as text beside it. No script.
//
// Invariant  All text is escaped. Every op is in one bar. Ops narrower than a pixel's share are
//            drawn as one bar with their neighbours on the lane, and counted in its title, so that
//            there are at most kMostBars; the caption says how many ops and bars there are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/report/timeline_op.h"

namespace millrace {

inline constexpr size_t kMostBars = 400;

struct TimelinePicture {
  std::string id, title;
  std::vector<TimelineOp> ops;
  double until = 0;  // ms at the right end; at least the end of every op
};

std::string TimelineHtml(const TimelinePicture& picture);

// Which colour is what.
std::string TimelineLegend();

// When the last op has ended; 0 without ops.
double EndOf(const std::vector<TimelineOp>& ops);

}  // namespace millrace
