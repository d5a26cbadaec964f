// Where the ranks of one job see each other's marks, when no message gets through: a
// small file per rank in run.dir/.progress/<job>, which all ranks share (checkpoints need
// a shared run.dir as well).
//
// Files    Each holds one record, written over in place by its rank a few times a second. Opened
//          and closed around each access, which is what makes NFS show the newest content to other
//          hosts. Never mapped: a store into a mapped file may wait for the disk, and the marks are
//          stored by the thread that works.
// Errors   A file system that fails stops the publishing, not the run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/exec/observe/progress.h"

namespace millrace {

struct ProgressRecord {
  uint64_t beat = 0;    // grows with each publication: its rank's watchdog runs
  int64_t idle_ms = 0;  // since the rank's last progress, by its own clock
  int32_t rank = 0, world = 1;
  int64_t pid = 0;
  // Of the process, in clock ticks since its host booted: pids are used again.
  uint64_t started = 0;
  char host[64] = {};
  ProgressReading reading;
};

// This process's part of a record.
ProgressRecord OwnRecord(int rank, int world);

// The state of the process that wrote the record, as in /proc: 'T' stopped by a signal, 't' by a
// debugger, 'D' in the kernel, ...; 'X': it has ended, also where nobody has collected it yet; '?':
// it is on another host.
char ProcessState(const ProgressRecord& record);

// A new folder for one job, run_dir/.progress/<id>; removes those of jobs that died on this host,
// at whatever moment, or are days old. Error(kIo).
std::string MakeJobFolder(const std::string& run_dir);

class ProgressBoard {
 public:
  // Makes the rank's file in `folder`, which exists. Error(kIo).
  ProgressBoard(std::string folder, int rank, int world);
  // Removes the file, and with the last one the folders, up to an empty run_dir; first the folders
  // of jobs that have died since MakeJobFolder.
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  void Publish(const ProgressRecord& record) noexcept;
  enum class Found {
    kRecord,
    kNothing,
    kUnreadable
  };  // kNothing: the rank has ended in good order
  Found Read(int rank, ProgressRecord& record) const noexcept;

 private:
  std::string PathOf(int rank) const;

  const std::string folder_;
  const int rank_;
};

}  // namespace millrace
