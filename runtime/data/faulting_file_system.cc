#include "runtime/data/faulting_file_system.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace millrace {

void FaultingFileSystem::Count(const char* name, const std::string& path) {
  calls_.push_back({name, path});
  counted_ = kind.empty() || kind == name;
  matches_ += counted_;
}

bool FaultingFileSystem::Fails() const {
  if (fault != Fault::kFail && fault != Fault::kFailTorn) return false;
  if (Strikes()) return true;
  const std::string& name = calls_.back().name;
  const bool harmless = name == "close" || name == "remove_file" || name == "remove_folder";
  return stays && !torn_ && counted_ && matches_ > at && !harmless;
}

template <typename F>
int FaultingFileSystem::Run(const char* name, const std::string& path, F call) {
  Count(name, path);
  if (Fails()) {
    errno = error;
    return -1;
  }
  if (Strikes() && (fault == Fault::kKillBefore || fault == Fault::kKillTorn))
    ::kill(::getpid(), SIGKILL);
  const int result = call();
  if (Strikes() && fault == Fault::kKillAfter) ::kill(::getpid(), SIGKILL);
  return result;
}

// `end`: of what is to be written, in the file.
template <typename F>
ssize_t FaultingFileSystem::RunWrite(const char* name, int fd, size_t bytes, int64_t end, F call) {
  const std::string path = open_[fd].path;
  std::this_thread::sleep_for(delay);
  if (torn_) {  // the call that asks for the rest
    torn_ = stays;
    Count(name, path);
    errno = error;
    return -1;
  }
  const int64_t missing = Take(fd, end);
  const bool next = (kind.empty() || kind == name) && matches_ + 1 == at;
  if ((fault == Fault::kKillTorn || fault == Fault::kFailTorn) && next && bytes > 1) {
    Count(name, path);
    const ssize_t wrote = call(bytes / 2);
    if (fault == Fault::kKillTorn) ::kill(::getpid(), SIGKILL);
    torn_ = true;
    return wrote;
  }
  ssize_t wrote = -1;
  const auto fitting = static_cast<int64_t>(bytes) - missing;
  const int result = Run(name, path, [&] {
    if (fitting <= 0 && bytes > 0) {
      errno = ENOSPC;
      return -1;
    }
    return (wrote = call(static_cast<size_t>(fitting))) < 0 ? -1 : 0;
  });
  return result != 0 ? -1 : wrote;
}

// Takes disk space for the first `end` bytes of a file; returns how many of them find none.
int64_t FaultingFileSystem::Take(int fd, int64_t end) {
  Open& file = open_[fd];
  const int64_t asked = std::max<int64_t>(0, end - file.taken);
  const int64_t got = std::min(asked, free_bytes.value_or(asked));
  if (free_bytes.has_value()) *free_bytes -= got;
  file.taken += got;
  return asked - got;
}

int FaultingFileSystem::Opened(int fd, const std::string& path) {
  if (fd >= 0) open_[fd] = {path, 0};
  return fd;
}

int FaultingFileSystem::Create(const std::string& path) {
  return Opened(Run("create", path, [&] { return disk_.Create(path); }), path);
}

int FaultingFileSystem::OpenAppend(const std::string& path) {
  return Opened(Run("open_append", path, [&] { return disk_.OpenAppend(path); }), path);
}

ssize_t FaultingFileSystem::Write(int fd, const void* data, size_t bytes, int64_t offset) {
  return RunWrite("write", fd, bytes, offset + static_cast<int64_t>(bytes),
                  [&](size_t n) { return disk_.Write(fd, data, n, offset); });
}

ssize_t FaultingFileSystem::Append(int fd, const void* data, size_t bytes) {
  return RunWrite("append", fd, bytes, open_[fd].taken + static_cast<int64_t>(bytes),
                  [&](size_t n) { return disk_.Append(fd, data, n); });
}

int FaultingFileSystem::Reserve(int fd, int64_t bytes) {
  return Run("reserve", open_[fd].path, [&] {
    if (Take(fd, bytes) == 0) return disk_.Reserve(fd, bytes);
    errno = ENOSPC;
    return -1;
  });
}

int FaultingFileSystem::Resize(int fd, int64_t bytes) {
  return Run("resize", open_[fd].path, [&] { return disk_.Resize(fd, bytes); });
}

int FaultingFileSystem::Sync(int fd) {
  std::this_thread::sleep_for(delay);
  return Run("sync", open_[fd].path, [&] { return disk_.Sync(fd); });
}

int FaultingFileSystem::Close(int fd) {
  const int result = Run("close", open_[fd].path, [&] { return disk_.Close(fd); });
  if (result != 0) disk_.Close(fd);  // a failed close has closed
  return result;
}

int FaultingFileSystem::Rename(const std::string& from, const std::string& to) {
  return Run("rename", from + " -> " + to, [&] { return disk_.Rename(from, to); });
}

int FaultingFileSystem::MakeFolder(const std::string& path) {
  return Run("make_folder", path, [&] { return disk_.MakeFolder(path); });
}

int FaultingFileSystem::SyncFolder(const std::string& path) {
  return Run("sync_folder", path, [&] { return disk_.SyncFolder(path); });
}

int FaultingFileSystem::RemoveFile(const std::string& path) {
  return Run("remove_file", path, [&] { return disk_.RemoveFile(path); });
}

int FaultingFileSystem::RemoveFolder(const std::string& path) {
  return Run("remove_folder", path, [&] { return disk_.RemoveFolder(path); });
}

}  // namespace millrace
