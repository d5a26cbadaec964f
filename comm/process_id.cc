#include "comm/process_id.h"

#include <unistd.h>

#include <mutex>
#include <random>

namespace millrace {

uint64_t ProcessId() {
  static std::mutex mutex;
  static pid_t process = 0;  // whose the id is: a fork draws its own
  static uint64_t id = 0;
  const std::lock_guard lock(mutex);
  if (process != getpid()) {
    std::random_device source;
    id = uint64_t{source()} << 32 | source();
    process = getpid();
  }
  return id;
}

}  // namespace millrace
