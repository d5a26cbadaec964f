// Faults on request, for tests of what a run does about them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/faulting_file_system.h"
#include "runtime/run/faults/train_faults.h"

namespace millrace {

inline constexpr const char* kFaultVariable = "MILLRACE_INJECT";

// "STEP:RANK:" and then "loss", "tokens", "loader", "hold", "unit=NAME", "skip=NAME", "swap=NAME"
// or "flip=NAME" (runtime/run/faults/train_faults.h), several separated by commas; STEP counts
// from 1. Whether there is such a rank and unit is for Train to say. Error(kConfig) naming
// the variable and the text.
std::vector<TrainFault> ParseFaults(const std::string& text);

// Those of the environment; none when the variable is not set.
std::vector<TrainFault> FaultsFromEnvironment();

// What is wrong with the disk that a rank writes checkpoints to.
struct DiskFault {
  enum class Kind { kFull, kWrite, kSync, kRename, kSlow };
  int64_t rank = 0;
  Kind kind = Kind::kFull;
  // kFull: bytes that it still takes; kSlow: ms of each write and sync; else: the call, from 1.
  int64_t amount = 0;
};

inline constexpr const char* kDiskFaultVariable = "MILLRACE_INJECT_DISK";

// "RANK:full=BYTES", "RANK:write=N", "RANK:sync=N", "RANK:rename=N" or "RANK:slow=MS", several
// separated by commas; of the calls that fail (EIO, once) one a rank. Errors as above.
std::vector<DiskFault> ParseDiskFaults(const std::string& text);
std::vector<DiskFault> DiskFaultsFromEnvironment();

// Null when nothing is wrong with this rank's.
std::unique_ptr<FileSystem> FaultyDisk(const std::vector<DiskFault>& faults, int64_t rank);

}  // namespace millrace
