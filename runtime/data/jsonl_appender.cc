#include "runtime/data/jsonl_appender.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Bytes up to and including the last newline among the first `size`.
int64_t WholeLines(int fd, int64_t size, const std::string& path) {
  std::string tail;
  while (size > 0) {
    const int64_t length = std::min<int64_t>(size, 1 << 16);
    tail.resize(static_cast<size_t>(length));
    const ssize_t got = ::pread(fd, tail.data(), tail.size(), size - length);
    if (got != length) ThrowIo("read the end of", path, got < 0 ? errno : EIO);
    const size_t newline = tail.rfind('\n');
    if (newline != std::string::npos) return size - length + static_cast<int64_t>(newline) + 1;
    size -= length;
  }
  return 0;
}

}  // namespace

JsonlAppender::JsonlAppender(std::string path, FileSystem& files)
    : files_(files), path_(std::move(path)), fd_(files.OpenAppend(path_)) {
  if (fd_ < 0) ThrowIo("open", path_, errno);
  try {
    struct stat status;
    if (::fstat(fd_, &status) != 0) ThrowIo("open", path_, errno);
    MR_REQUIRE(ErrorCode::kIo, S_ISREG(status.st_mode), "{} is not a regular file", path_);
    size_ = WholeLines(fd_, status.st_size, path_);
    if (size_ != status.st_size && files_.Resize(fd_, size_) != 0) ThrowIo("repair", path_, errno);
  } catch (...) {
    files_.Close(fd_);
    throw;
  }
}

JsonlAppender::~JsonlAppender() { files_.Close(fd_); }

void JsonlAppender::Append(std::string_view line) {
  MR_CHECK(line.find('\n') == std::string_view::npos, "a line for {} contains a newline", path_);
  // What a failed call left, if it could not be taken back at once.
  if (partial_ && files_.Resize(fd_, size_) != 0) ThrowIo("repair", path_, errno);
  partial_ = false;
  std::string text(line);
  text += '\n';
  ssize_t wrote;
  do {
    wrote = files_.Append(fd_, text.data(), text.size());
  } while (wrote < 0 && errno == EINTR);
  if (wrote == static_cast<ssize_t>(text.size())) {
    size_ += wrote;
    return;
  }
  // A short count on a regular file means that the disk is full.
  const int error = wrote < 0 ? errno : ENOSPC;
  partial_ = wrote > 0 && files_.Resize(fd_, size_) != 0;
  ThrowIo("append to", path_, error);
}

void JsonlAppender::Sync() {
  if (files_.Sync(fd_) != 0) ThrowIo("sync", path_, errno);
}

}  // namespace millrace
