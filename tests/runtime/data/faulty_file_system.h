// A FileSystem whose n-th changing call goes wrong in a chosen way, and which remembers what was asked of it.
// Its syncs do not wait for the disk: a killed process loses nothing that it had written. What a crash of the
// machine loses is crash_model.h.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"

namespace millrace {

class FaultyFileSystem final : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kKillBefore,  // SIGKILL instead of the call
    kKillAfter,   // SIGKILL when the call has returned
    kKillTorn,    // a write moves half of its bytes, then SIGKILL; other calls as kKillBefore
    kFail,        // the call fails with `error` and does nothing
    kFailTorn,    // a write moves half of its bytes, the next one and all later writes fail; other calls as
                  // kFail
  };
  struct Call {
    std::string name;
    std::string
        path;  // of Write, Reserve, Resize, Sync and Close: the path that the descriptor was opened with
  };

  Fault fault = Fault::kNone;
  int64_t at = 0;  // the call that it strikes, counted from 1
  int error = EIO;
  bool stays =
      false;  // kFail strikes every later call as well, Close and removals excepted: a disk that stays full

  const std::vector<Call>& calls() const { return calls_; }

  int Create(const std::string& path) override {
    return Opened(Run("create", path, [&] { return FileSystem::Create(path); }), path);
  }
  int OpenAppend(const std::string& path) override {
    return Opened(Run("open_append", path, [&] { return FileSystem::OpenAppend(path); }), path);
  }
  ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset) override {
    return RunWrite("write", fd, bytes, [&](size_t n) { return FileSystem::Write(fd, data, n, offset); });
  }
  ssize_t Append(int fd, const void* data, size_t bytes) override {
    return RunWrite("append", fd, bytes, [&](size_t n) { return FileSystem::Append(fd, data, n); });
  }
  int Reserve(int fd, int64_t bytes) override {
    return Run("reserve", PathOf(fd), [&] { return FileSystem::Reserve(fd, bytes); });
  }
  int Resize(int fd, int64_t bytes) override {
    return Run("resize", PathOf(fd), [&] { return FileSystem::Resize(fd, bytes); });
  }
  int Sync(int fd) override {
    return Run("sync", PathOf(fd), [] { return 0; });
  }
  int Close(int fd) override {
    const int result = Run("close", PathOf(fd), [&] { return FileSystem::Close(fd); });
    if (result != 0) FileSystem::Close(fd);  // a failed close has closed
    return result;
  }
  int Rename(const std::string& from, const std::string& to) override {
    return Run("rename", from + " -> " + to, [&] { return FileSystem::Rename(from, to); });
  }
  int MakeFolder(const std::string& path) override {
    return Run("make_folder", path, [&] { return FileSystem::MakeFolder(path); });
  }
  int SyncFolder(const std::string& path) override {
    return Run("sync_folder", path, [] { return 0; });
  }
  int RemoveFile(const std::string& path) override {
    return Run("remove_file", path, [&] { return FileSystem::RemoveFile(path); });
  }
  int RemoveFolder(const std::string& path) override {
    return Run("remove_folder", path, [&] { return FileSystem::RemoveFolder(path); });
  }

 private:
  bool Strikes() const { return int64_t(calls_.size()) == at; }

  template <typename F>
  int Run(const char* name, const std::string& path, F call) {
    calls_.push_back({name, path});
    const std::string kind = name;
    const bool harmless = kind == "close" || kind == "remove_file" || kind == "remove_folder";
    if ((fault == Fault::kFail || fault == Fault::kFailTorn) &&
        (Strikes() || (stays && !torn_ && int64_t(calls_.size()) > at && !harmless))) {
      errno = error;
      return -1;
    }
    if (Strikes() && (fault == Fault::kKillBefore || fault == Fault::kKillTorn)) ::kill(::getpid(), SIGKILL);
    const int result = call();
    if (Strikes() && fault == Fault::kKillAfter) ::kill(::getpid(), SIGKILL);
    return result;
  }

  template <typename F>
  ssize_t RunWrite(const char* name, int fd, size_t bytes, F call) {
    const bool torn = fault == Fault::kKillTorn || fault == Fault::kFailTorn;
    if (torn && int64_t(calls_.size()) + 1 == at && bytes > 1) {
      calls_.push_back({name, PathOf(fd)});
      const ssize_t wrote = call(bytes / 2);
      if (fault == Fault::kKillTorn) ::kill(::getpid(), SIGKILL);
      torn_ = true;
      return wrote;
    }
    if (torn_) {  // the call that asks for the rest
      torn_ = stays;
      calls_.push_back({name, PathOf(fd)});
      errno = error;
      return -1;
    }
    ssize_t wrote = -1;
    if (Run(name, PathOf(fd), [&] { return (wrote = call(bytes)) < 0 ? -1 : 0; }) != 0) return -1;
    return wrote;
  }

  int Opened(int fd, const std::string& path) {
    if (fd >= 0) {
      if (size_t(fd) >= paths_.size()) paths_.resize(fd + 1);
      paths_[fd] = path;
    }
    return fd;
  }
  std::string PathOf(int fd) const { return size_t(fd) < paths_.size() ? paths_[fd] : "?"; }

  bool torn_ = false;
  std::vector<Call> calls_;
  std::vector<std::string> paths_;
};

}  // namespace millrace
