// What is wrong with a plan, in words that name the op, the buffer and the bytes.
#pragma once

#include <string>
#include <vector>

namespace millrace {

enum class ViolationKind {
  kStructure,   // body, entry, edge or address that makes no sense
  kBounds,      // a view leaves its buffer, or a buffer the arena
  kLifetime,    // an access outside its buffer's live ranges
  kOverlap,     // two buffers live at one position share bytes, or two operands of one op do
  kSticky,      // stays of one bucket at different addresses
  kUndefined,   // a read of bytes that nothing has written since their buffer became live
  kStale,       // a read of weights that were gathered or cast before the latest update
  kRace,        // two conflicting accesses that neither stream order nor edges order
  kMicrobatch,  // one microbatch's activations read in another; one taken twice, or not at all
  kCollective,  // a communicator used from two streams, or one whose group fits no size or shard
  kRows,        // rows of another rank than those that they meet: an exchange over the wrong axes
  kOverflow,    // rows that a receive buffer may have no room for, and nobody would hear of it
};

struct Violation {
  ViolationKind kind = ViolationKind::kStructure;
  std::string message;
};
using Violations = std::vector<Violation>;

}  // namespace millrace
