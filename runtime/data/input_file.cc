#include "runtime/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace millrace {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

// A wrong path is the caller's mistake, to be told in the caller's terms; the rest is the
// machine's.
bool IsPathProblem(int error) {
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM ||
         error == ELOOP || error == ENAMETOOLONG || error == EISDIR || error == ENXIO ||
         error == EINVAL;
}

}  // namespace

InputFile::InputFile(std::string path, ErrorCode code)
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    : path_(std::move(path)),
      code_(code),
      fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),
      size_(0) {
  if (fd_ < 0) {
    const int error = errno;
    throw Error(IsPathProblem(error) ? code : ErrorCode::kIo,
                fmt::format("cannot open {}: {}", path_, ErrnoText(error)));
  }
  struct stat status;
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw Error(code, fmt::format("{} is not a regular file", path_));
  }
  size_ = status.st_size;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      code_(other.code_),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(code_, other.code_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

void InputFile::Read(int64_t offset, void* out, int64_t bytes) const {
  MR_CHECK(offset >= 0 && bytes >= 0, "reading {} bytes at {} of {}", bytes, offset, path_);
  char* cursor = static_cast<char*>(out);
  int64_t done = 0;
  while (done < bytes) {
    // Linux refuses to move 2 GiB or more at once.
    constexpr int64_t kLargestCall = int64_t{1} << 30;
    const ssize_t got =
        ::pread(fd_, cursor + done, static_cast<size_t>(std::min(bytes - done, kLargestCall)),
                offset + done);
    if (got < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      throw Error(ErrorCode::kIo, fmt::format("reading {} bytes at offset {} of {}: {}", bytes,
                                              offset, path_, ErrnoText(error)));
    }
    MR_REQUIRE(
        code_, got > 0,
        "{} ends at byte {}, while reading bytes {} to {}: truncated, or changed while in use",
        path_, offset + done, offset, offset + bytes);
    done += got;
  }
}

bool FileExists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string ReadWholeFile(const std::string& path, int64_t max_bytes, ErrorCode code) {
  const InputFile file(path, code);
  MR_REQUIRE(code, file.size() <= max_bytes, "{} has {} bytes, at most {} are allowed", path,
             file.size(), max_bytes);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.Read(0, text.data(), file.size());
  return text;
}

}  // namespace millrace
