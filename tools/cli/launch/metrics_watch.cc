#include "tools/cli/launch/metrics_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {
constexpr int64_t kTail = 16 << 10;  // longer than a few lines
}

MetricsWatch::MetricsWatch(const std::string& run_dir)
    : path_(run_dir + "/metrics.jsonl"), seen_(Look()), step_(LastStep()) {}

MetricsWatch::Image MetricsWatch::Look() const {
  struct stat status;
  if (::stat(path_.c_str(), &status) != 0) return {};
  return {status.st_ino, status.st_size,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

bool MetricsWatch::Poll() {
  const Image now = Look();
  if (now == seen_) return false;
  seen_ = now;
  changed_ = true;
  step_ = LastStep();
  return true;
}

int64_t MetricsWatch::LastStep() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const off_t size = ::lseek(fd, 0, SEEK_END);
  std::string tail(static_cast<size_t>(std::min<int64_t>(kTail, std::max<off_t>(size, 0))), '\0');
  const ssize_t got = ::pread(fd, tail.data(), tail.size(), size - static_cast<off_t>(tail.size()));
  ::close(fd);
  tail.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  const size_t end = tail.rfind('\n');  // what follows is being written
  if (end == tail.npos) return 0;
  const size_t before = end == 0 ? tail.npos : tail.rfind('\n', end - 1);
  const size_t begin = before == tail.npos ? 0 : before + 1;
  const auto line = TryParseJson(tail.substr(begin, end - begin));
  if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) return 0;
  return line["step"].get<int64_t>();
}

}  // namespace millrace
