#include "runtime/run/generate/lockstep.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "runtime/base/error.h"

namespace millrace {

Turn NextTurn(Communicator& ranks, const Turn& own) {
  const std::array<int64_t, 2> words = {static_cast<int64_t>(own.kind), own.rows};
  Turn next;
  for (const std::string& text :
       ranks.HostAllGather({reinterpret_cast<const char*>(words.data()), sizeof(words)})) {
    MR_CHECK_EQ(text.size(), sizeof(words), "bytes of what a rank wants to run");
    std::array<int64_t, 2> theirs;
    std::memcpy(theirs.data(), text.data(), sizeof(theirs));
    next = std::max(next, Turn{static_cast<Turn::Kind>(theirs[0]), theirs[1]});
  }
  return next;
}

}  // namespace millrace
