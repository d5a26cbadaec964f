// How a kernel op touches one operand. Lifetimes, stream edges and race checks derive from these alone.
#pragma once

#include <string_view>

namespace millrace {

enum class Access {
  kRead,        // defined before, unchanged
  kWrite,       // every element of the view is overwritten; contents before do not matter
  kAccumulate,  // read and written: defined before, changed
  kScratch,     // undefined before and after
};

constexpr bool Reads(Access a) { return a == Access::kRead || a == Access::kAccumulate; }
constexpr bool Writes(Access a) { return a != Access::kRead; }

constexpr std::string_view Name(Access a) {
  switch (a) {
    case Access::kRead: return "read";
    case Access::kWrite: return "write";
    case Access::kAccumulate: return "accumulate";
    case Access::kScratch: return "scratch";
  }
  return "?";
}

// Whether an output replaces or adds to what its view holds: beta 0 or beta 1 of a GEMM.
enum class Update { kOverwrite, kAccumulate };

constexpr Access AccessOf(Update u) { return u == Update::kOverwrite ? Access::kWrite : Access::kAccumulate; }

}  // namespace millrace
