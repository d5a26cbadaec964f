#include "comm/process_id.h"

#include <random>

namespace millrace {

uint64_t ProcessId() {
  static const uint64_t id = [] {
    std::random_device source;
    return uint64_t{source()} << 32 | source();
  }();
  return id;
}

}  // namespace millrace
