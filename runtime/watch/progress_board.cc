#include "runtime/watch/progress_board.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <type_traits>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/base/host_name.h"
#include "runtime/data/file_system.h"

namespace millrace {
namespace {

constexpr std::string_view kFolder = "/.progress";
constexpr auto kLeftoverAge = std::chrono::hours(72);

static_assert(std::is_trivially_copyable_v<ProgressRecord>);
struct Image {
  std::array<std::byte, sizeof(ProgressRecord)> bytes;
  uint64_t check;
};

// Tells a record that was read while it was written, or by another version, from a whole one.
uint64_t CheckOf(const Image& image) {
  return Fnv1a64({reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size()});
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// State and start of a process: fields 3 and 22 of /proc/<pid>/stat, counted behind the name, which
// may hold anything but ends with the last ')'.
struct ProcStat {
  char state = 'X';
  uint64_t started = 0;
};
std::optional<ProcStat> StatOf(int64_t pid) {
  const Descriptor file(fmt::format("/proc/{}/stat", pid), O_RDONLY);
  char text[1024] = {};
  if (file.get() < 0 || ::read(file.get(), text, sizeof text - 1) <= 0) return std::nullopt;
  const char* fields = std::strrchr(text, ')');
  ProcStat stat;
  unsigned long long started = 0;
  if (fields == nullptr ||
      std::sscanf(
          fields + 1,
          " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
          &stat.state, &started) != 2)
    return std::nullopt;
  stat.started = started;
  return stat;
}

ProgressBoard::Found ReadRecord(const std::string& path, ProgressRecord& record) noexcept {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0)
    return errno == ENOENT ? ProgressBoard::Found::kNothing : ProgressBoard::Found::kUnreadable;
  Image image;
  if (::pread(file.get(), &image, sizeof image, 0) != sizeof image || CheckOf(image) != image.check)
    return ProgressBoard::Found::kUnreadable;
  std::memcpy(&record, image.bytes.data(), sizeof record);
  return ProgressBoard::Found::kRecord;
}

// A job's folder is named by the process that made it, and by when.
std::string JobName() {
  const ProgressRecord own = OwnRecord(0, 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("{:x}-{}-{}-{}", now, own.pid, own.started, own.host);
}

// Whether the process that made the folder has ended, on this host.
bool MakerEnded(const std::filesystem::path& folder) {
  ProgressRecord maker;
  long long pid = 0;
  unsigned long long started = 0;
  if (std::sscanf(folder.filename().c_str(), "%*[0-9a-f]-%lld-%llu-%63s", &pid, &started,
                  maker.host) != 3)
    return false;
  maker.pid = pid;
  maker.started = started;
  return ProcessState(maker) == 'X';
}

// A job's folder is left when its ranks were killed: who made it has ended, and so has every rank
// that wrote a record. An empty file is of a rank that was killed before it wrote one.
bool IsLeft(const std::filesystem::path& folder) {
  std::error_code error;
  bool ended = MakerEnded(folder);
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    ProgressRecord record;
    const bool known = ReadRecord(entry.path().string(), record) == ProgressBoard::Found::kRecord;
    const bool empty = !known && std::filesystem::file_size(entry.path(), error) == 0 && !error;
    ended = ended && (empty || (known && ProcessState(record) == 'X'));
  }
  if (ended && !error) return true;
  const auto written = std::filesystem::last_write_time(folder, error);
  return !error && std::filesystem::file_time_type::clock::now() - written > kLeftoverAge;
}

void RemoveLeft(const std::string& root) {
  std::error_code ignored;
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored))
    if (IsLeft(entry.path())) left.push_back(entry.path());
  for (const auto& path : left) std::filesystem::remove_all(path, ignored);
}

}  // namespace

ProgressRecord OwnRecord(int rank, int world) {
  ProgressRecord record;
  record.rank = rank;
  record.world = world;
  record.pid = ::getpid();
  HostName().copy(record.host, sizeof record.host - 1);
  if (const auto stat = StatOf(record.pid)) record.started = stat->started;
  return record;
}

char ProcessState(const ProgressRecord& record) {
  if (HostName().substr(0, sizeof record.host - 1) != record.host) return '?';
  const std::optional<ProcStat> stat = StatOf(record.pid);
  return stat && stat->started == record.started && stat->state != 'Z' ? stat->state : 'X';
}

std::string MakeJobFolder(const std::string& run_dir) {
  const std::string root = run_dir + std::string(kFolder);
  MakeFolder(FileSystem::Posix(), root);
  RemoveLeft(root);
  const std::string folder = root + "/" + JobName();
  MakeFolder(FileSystem::Posix(), folder);
  return folder;
}

ProgressBoard::ProgressBoard(std::string folder, int rank, int world)
    : folder_(std::move(folder)), rank_(rank) {
  const Descriptor file(PathOf(rank), O_WRONLY | O_CREAT);
  MR_REQUIRE(ErrorCode::kIo, file.get() >= 0, "cannot make {}: {}", PathOf(rank),
             std::generic_category().message(errno));
  Publish(OwnRecord(rank, world));
}

ProgressBoard::~ProgressBoard() {
  ::unlink(PathOf(rank_).c_str());
  if (::rmdir(folder_.c_str()) != 0) return;  // fails until the last rank leaves
  RemoveLeft(FolderOf(folder_));  // of jobs that were still ending when this one began
  ::rmdir(FolderOf(folder_).c_str());
  ::rmdir(FolderOf(FolderOf(folder_)).c_str());  // of a verb that leaves nothing else, like bench
}

std::string ProgressBoard::PathOf(int rank) const {
  return fmt::format("{}/rank_{}", folder_, rank);
}

void ProgressBoard::Publish(const ProgressRecord& record) noexcept {
  Image image;
  std::memcpy(image.bytes.data(), &record, sizeof record);
  image.check = CheckOf(image);
  const Descriptor file(PathOf(rank_), O_WRONLY);
  if (file.get() < 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(file.get(), &image, sizeof image, 0);
}

ProgressBoard::Found ProgressBoard::Read(int rank, ProgressRecord& record) const noexcept {
  return ReadRecord(PathOf(rank), record);
}

}  // namespace millrace
