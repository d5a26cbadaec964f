#include "runtime/data/run_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/data/file_system.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kPoll(50);

std::string ErrorText(int error) { return std::generic_category().message(error); }

}  // namespace

RunLock::RunLock(const std::string& run_dir, std::chrono::milliseconds patience,
                 const std::string& name, Words words)
    : folder_(run_dir), path_(run_dir + "/" + name), words_(std::move(words)) {
  struct stat status;
  made_folder_ = ::stat(folder_.c_str(), &status) != 0;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!TryLock()) {
    if (std::chrono::steady_clock::now() >= deadline) Refuse();
    ::close(fd_);
    std::this_thread::sleep_for(kPoll);
  }
  if (warning_.empty()) Sign();
}

RunLock::~RunLock() {
  // While it is still locked: whoever opened this file in the meantime finds after locking it that
  // the name has gone, and makes a new one.
  if (warning_.empty()) ::unlink(path_.c_str());
  ::close(fd_);
  if (made_folder_) ::rmdir(folder_.c_str());  // fails when something is in it
}

// False: somebody else has it, and fd_ is open.
bool RunLock::TryLock() {
  while (true) {
    MakeFolder(FileSystem::Posix(), folder_);
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno == ENOENT) continue;  // the folder went with its last holder
    MR_REQUIRE(ErrorCode::kIo, fd_ >= 0, "cannot open {}: {}", path_, ErrorText(errno));
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return false;
      warning_ = fmt::format("cannot lock {}: {}; nothing prevents another {} in this folder",
                             path_, ErrorText(errno), words_.holder);
      return true;
    }
    // The lock belongs to the file, not to its name: is this still the file of that name?
    struct stat locked, named;
    if (::fstat(fd_, &locked) == 0 && ::stat(path_.c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino && locked.st_dev == named.st_dev)
      return true;
    ::close(fd_);
  }
}

void RunLock::Refuse() {
  char text[512] = {};
  const ssize_t length = ::pread(fd_, text, sizeof text - 1, 0);
  std::string holder(text, length > 0 ? static_cast<size_t>(length) : 0);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  ::close(fd_);
  throw Error(
      ErrorCode::kConfig,
      fmt::format("{0} {1} is in use by {2}; wait until that {3} has ended, or choose another {0} "
                  "(the lock is {4})",
                  words_.folder, folder_, holder.empty() ? "another " + words_.holder : holder,
                  words_.holder, path_));
}

// For whoever is refused. A full disk must not end a run that holds its lock.
void RunLock::Sign() {
  const std::string text = fmt::format("pid {} on host {} since {:%F %T}\n", ::getpid(), HostName(),
                                       fmt::localtime(std::time(nullptr)));
  if (::ftruncate(fd_, 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(fd_, text.data(), text.size(), 0);
}

}  // namespace millrace
