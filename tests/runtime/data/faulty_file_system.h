// A FaultingFileSystem over a disk whose syncs take no time: a killed process loses nothing that it
// had written. What a crash of the machine loses is crash_model.h.
#pragma once

#include <string>

#include "runtime/data/faulting_file_system.h"

namespace millrace {

struct HastyDisk : FileSystem {
  int Sync(int) override { return 0; }
  int SyncFolder(const std::string&) override { return 0; }
};

class FaultyFileSystem final : public FaultingFileSystem {
 public:
  FaultyFileSystem() : FaultingFileSystem(disk_) {}

 private:
  HastyDisk disk_;  // has no state: it may be named before it is made
};

}  // namespace millrace
