// Which ranks of a group are threads of one process.
#pragma once

#include <cstdint>

namespace millrace {

// Of this process, among those of its host; the same for all its threads. Not the pid: containers
// give out the same ones.
uint64_t ProcessId();

}  // namespace millrace
