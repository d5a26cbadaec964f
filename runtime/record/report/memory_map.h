// The arena of a planned step as a piece of HTML: an inline SVG, in which a buffer's stay is a
// rectangle: from left to right the ops of the plan's bodies laid end to end (step_plan.h,
// Timeline), upwards the bytes of the arena. No script.
//
// Invariant  All text is escaped. Every stay is in one rectangle. Stays lower or shorter than a
//            pixel's share are drawn as one with others of their class at the same place, and
//            counted in its title, so that there are at most kMostStays; the caption says how many
//            there are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/step_plan.h"

namespace millrace {

inline constexpr size_t kMostStays = 600;

// Bytes [offset, offset + bytes) of the arena, for the ops at positions [begin, end).
struct BufferStay {
  std::string name;
  BufferClass cls = BufferClass::kActivations;
  int64_t bytes = 0, offset = 0;
  int64_t begin = 0, end = 0;
};

struct PlannedBody {
  std::string name;
  int64_t begin = 0, end = 0;  // positions
};

struct ArenaMap {
  int64_t arena = 0, positions = 0;
  int64_t peak = 0;  // the position where most bytes live
  std::vector<PlannedBody> bodies;
  std::vector<BufferStay> stays;
};

ArenaMap ArenaMapOf(const StepPlan& plan, int64_t peak);

// "" for an arena without bytes.
std::string MemoryMapHtml(const ArenaMap& map);

}  // namespace millrace
