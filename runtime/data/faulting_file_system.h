// A FileSystem that passes every call on to another one and makes some of them go wrong: a process
// killed in the midst of it, a failing or full or slow disk. For tests, and for faults on request
// (tools/cli/train/fault.h).
//
// Threads  One at a time.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/file_system.h"

namespace millrace {

class FaultingFileSystem : public FileSystem {
 public:
  explicit FaultingFileSystem(FileSystem& disk = FileSystem::Posix()) : disk_(disk) {}

  enum class Fault {
    kNone,
    kKillBefore,  // SIGKILL instead of the call
    kKillAfter,   // SIGKILL when the call has returned
    kKillTorn,    // a write moves half of its bytes, then SIGKILL; other calls as kKillBefore
    kFail,        // the call fails with `error` and does nothing
    kFailTorn,    // a write moves half of its bytes, the next one fails; other calls as kFail
  };
  Fault fault = Fault::kNone;
  std::string kind;  // of the calls that are counted: "write", "sync", "rename", ...; "": all
  int64_t at = 0;    // the one of them that it strikes, counted from 1
  int error = EIO;
  // Every later one of them fails as well, Close and removals excepted; after a torn write, writes
  // alone: a disk that stays full.
  bool stays = false;

  // Bytes that Write, Append and Reserve still get; more is ENOSPC, and removing gives none back.
  std::optional<int64_t> free_bytes = {};
  std::chrono::milliseconds delay{0};  // of each Write, Append and Sync

  struct Call {
    std::string name;
    // Of Write, Reserve, Resize, Sync and Close: that the descriptor was opened with.
    std::string path;
  };
  const std::vector<Call>& calls() const { return calls_; }

  int Create(const std::string& path) override;
  int OpenAppend(const std::string& path) override;
  ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset) override;
  ssize_t Append(int fd, const void* data, size_t bytes) override;
  int Reserve(int fd, int64_t bytes) override;
  int Resize(int fd, int64_t bytes) override;
  int Sync(int fd) override;
  int Close(int fd) override;
  int Rename(const std::string& from, const std::string& to) override;
  int MakeFolder(const std::string& path) override;
  int SyncFolder(const std::string& path) override;
  int RemoveFile(const std::string& path) override;
  int RemoveFolder(const std::string& path) override;

 private:
  struct Open {
    std::string path;
    int64_t taken = 0;  // bytes of its disk space
  };

  void Count(const char* name, const std::string& path);
  bool Strikes() const { return counted_ && matches_ == at; }
  bool Fails() const;
  template <typename F>
  int Run(const char* name, const std::string& path, F call);
  template <typename F>
  ssize_t RunWrite(const char* name, int fd, size_t bytes, int64_t end, F call);
  int64_t Take(int fd, int64_t end);
  int Opened(int fd, const std::string& path);

  FileSystem& disk_;
  std::vector<Call> calls_;
  int64_t matches_ = 0;   // calls of `kind`
  bool counted_ = false;  // the present call is one
  bool torn_ = false;     // writes fail
  std::map<int, Open> open_;
};

}  // namespace millrace
