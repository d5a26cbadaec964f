#include "tools/launch/launch_scratch.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/file_system.h"
#include "tools/launch/process_facts.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "millrace-launch.";
constexpr std::chrono::seconds kPatience(10);

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Processes that carry kLaunchVariable=`path`.
std::vector<pid_t> Carriers(const std::string& path) {
  const std::string wanted = fmt::format("{}={}", kLaunchVariable, path);
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::string_view variables;
    const std::string environment = Content("/proc/" + name + "/environ");
    for (variables = environment; !variables.empty();) {
      const size_t end = std::min(variables.find('\0'), variables.size());
      const pid_t pid = std::atoi(name.c_str());
      if (variables.substr(0, end) == wanted && !IsOver(StateOf(pid))) found.push_back(pid);
      variables.remove_prefix(std::min(end + 1, variables.size()));
    }
  }
  return found;
}

void KillCarriers(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const std::vector<pid_t> left = Carriers(path);
    if (left.empty()) return;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    MR_REQUIRE(ErrorCode::kIo, std::chrono::steady_clock::now() < deadline,
               "process {} of an earlier run in this folder does not end, although it was killed",
               left.front());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string Place() {
  if (::access("/dev/shm", W_OK | X_OK) == 0) return "/dev/shm";
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

}  // namespace

LaunchScratch::LaunchScratch(const std::string& run_dir) : note_(run_dir + "/.launch") {
  const std::string earlier = Content(note_);
  // Only what has our name is removed, whatever the note says.
  if (fs::path(earlier).is_absolute() &&
      fs::path(earlier).filename().string().starts_with(kPrefix)) {
    found_earlier_ = true;
    KillCarriers(earlier);
    RemoveTree(FileSystem::Posix(), earlier);
  }
  std::string made = fmt::format("{}/{}XXXXXX", Place(), kPrefix);
  MR_REQUIRE(ErrorCode::kIo, ::mkdtemp(made.data()) != nullptr,
             "cannot make a temporary folder {}: {}", made, std::generic_category().message(errno));
  path_ = made;
  try {
    WriteFileAtomically(FileSystem::Posix(), note_, path_);
  } catch (...) {
    ::rmdir(path_.c_str());
    throw;
  }
}

LaunchScratch::~LaunchScratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  fs::remove(note_, ignored);
}

void LaunchScratch::Clear() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored))
    fs::remove_all(entry.path(), ignored);
}

}  // namespace millrace
