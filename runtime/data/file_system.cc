#include "runtime/data/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {

void ThrowIo(const char* what, const std::string& path, int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, path, std::generic_category().message(error)));
}

int FileSystem::Create(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a reader.
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                0666);
}
int FileSystem::OpenAppend(const std::string& path) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}
ssize_t FileSystem::Write(int fd, const void* data, size_t bytes, int64_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
ssize_t FileSystem::Append(int fd, const void* data, size_t bytes) {
  return ::write(fd, data, bytes);
}
int FileSystem::Reserve(int fd, int64_t bytes) { return ::fallocate(fd, 0, 0, bytes); }
int FileSystem::Resize(int fd, int64_t bytes) { return ::ftruncate(fd, bytes); }
int FileSystem::Sync(int fd) { return ::fsync(fd); }
int FileSystem::Close(int fd) { return ::close(fd); }
int FileSystem::Rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}
int FileSystem::MakeFolder(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
int FileSystem::SyncFolder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  errno = error;
  return result;
}
int FileSystem::RemoveFile(const std::string& path) { return ::unlink(path.c_str()); }
int FileSystem::RemoveFolder(const std::string& path) { return ::rmdir(path.c_str()); }

FileSystem& FileSystem::Posix() {
  static FileSystem posix;
  return posix;
}

OutputFile::OutputFile(FileSystem& files, std::string path)
    : files_(files), path_(std::move(path)), fd_(files.Create(path_)) {
  if (fd_ < 0 && errno == ENXIO)  // a pipe without a reader, or a socket
    throw Error(ErrorCode::kIo, "cannot create " + path_ + ": it exists and is not a regular file");
  if (fd_ < 0) ThrowIo("create", path_, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) files_.Close(fd_);
}

void OutputFile::Fail(const char* what, int error) const { ThrowIo(what, path_, error); }

void OutputFile::Reserve(int64_t bytes) {
  if (bytes <= 0) return;  // the system refuses to reserve nothing
  int result;
  do {
    result = files_.Reserve(fd_, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
    Fail("reserve space for", errno);
}

void OutputFile::Write(int64_t offset, const void* data, int64_t bytes) {
  MR_CHECK(fd_ >= 0 && offset >= 0 && bytes >= 0, "writing {} bytes at {} of {}", bytes, offset,
           path_);
  const char* cursor = static_cast<const char*>(data);
  int64_t done = 0;
  while (done < bytes) {
    // Linux refuses to move 2 GiB or more at once.
    constexpr int64_t kLargestCall = int64_t{1} << 30;
    const ssize_t wrote =
        files_.Write(fd_, cursor + done, static_cast<size_t>(std::min(bytes - done, kLargestCall)),
                     offset + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) Fail("write to", wrote < 0 ? errno : EIO);
    done += wrote;
  }
}

void OutputFile::SyncAndClose() {
  MR_CHECK_GE(fd_, 0, "{} is closed already", path_);
  int result;
  do {
    result = files_.Sync(fd_);
  } while (result != 0 && errno == EINTR);
  if (result != 0) Fail("sync", errno);
  // Network file systems report a failed write at last here. The descriptor is
  // gone whatever close says.
  if (files_.Close(std::exchange(fd_, -1)) != 0 && errno != EINTR) Fail("close", errno);
}

void MakeFolder(FileSystem& files, const std::string& path) {
  if (path.empty()) return;
  const std::string parent = FolderOf(path);
  int result = files.MakeFolder(path);
  if (result != 0 && errno == ENOENT && parent != path) {
    MakeFolder(files, parent);
    result = files.MakeFolder(path);
  }
  if (result == 0) return SyncFolder(files, parent);
  const int error = errno;
  struct stat status;
  if (error == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  ThrowIo("make the folder", path, error);
}

void SyncFolder(FileSystem& files, const std::string& path) {
  int result;
  do {
    result = files.SyncFolder(path);
  } while (result != 0 && errno == EINTR);
  // Some network file systems cannot sync a folder, and say so in one of these ways; there is
  // nothing better to do.
  if (result != 0 && errno != EINVAL && errno != ENOTSUP) ThrowIo("sync the folder", path, errno);
}

void RemoveTree(FileSystem& files, const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    ThrowIo("remove", path, errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    if (files.RemoveFile(path) != 0 && errno != ENOENT) ThrowIo("remove", path, errno);
    return;
  }
  std::error_code error;
  // Removing while listing may skip entries, so list first.
  std::vector<std::string> children;
  for (std::filesystem::directory_iterator entries(path, error), end; !error && entries != end;
       entries.increment(error))
    children.push_back(entries->path().string());
  if (error && error != std::errc::no_such_file_or_directory) ThrowIo("list", path, error.value());
  for (const std::string& child : children) RemoveTree(files, child);
  if (files.RemoveFolder(path) != 0 && errno != ENOENT) ThrowIo("remove the folder", path, errno);
}

void Rename(FileSystem& files, const std::string& from, const std::string& to) {
  if (files.Rename(from, to) != 0) ThrowIo("rename", from + " to " + to, errno);
  SyncFolder(files, FolderOf(to));
}

void WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view text) {
  // A rename would put the file in place of a device or pipe (/dev/stdout).
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    throw Error(ErrorCode::kIo, "cannot write " + path + ": it exists and is not a regular file");
  const std::string temporary = path + ".tmp";
  try {
    OutputFile file(files, temporary);
    file.Write(0, text.data(), static_cast<int64_t>(text.size()));
    file.SyncAndClose();
    Rename(files, temporary, path);
  } catch (...) {
    files.RemoveFile(temporary);  // a full disk is not helped by leftovers
    throw;
  }
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace millrace
