#include "tools/cli/host_facts.h"

#include <cblas.h>
#include <fmt/core.h>
#include <mpi.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/data/hash.h"
#include "tools/launch/mpirun_words.h"

namespace millrace {
namespace {

std::string FirstLineOf(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string WholeFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Of "name<separator>value" lines: the first value of that name, without quotes.
std::string ValueOf(const char* path, const std::string& name, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t split = line.find(separator);
    if (split == line.npos || line.substr(0, line.find_last_not_of(" \t", split - 1) + 1) != name)
      continue;
    const size_t first = line.find_first_not_of(" \t\"", split + 1);
    return first == line.npos ? "" : line.substr(first, line.find_last_not_of(" \t\"") - first + 1);
  }
  return "";
}

// The program's own bytes tell one build from another.
std::string Program() {
  const std::string bytes = WholeFile("/proc/self/exe");
  return bytes.empty() ? "" : fmt::format("{}, g++ {}", Hash128(bytes).substr(0, 16), __VERSION__);
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-11-22T01:02:03Z"] = {};
  return std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0 ? "" : text;
}

bool MpiStarted() {
  int started = 0;
  return MPI_Initialized(&started) == MPI_SUCCESS && started != 0;
}

}  // namespace

std::string MpiLibrary() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);  // one of the few calls that need no MPI_Init
  const std::string line = FirstLineOf(text);
  return line.substr(0, line.find(','));
}

std::string BlasLibrary() { return FirstLineOf(openblas_get_config()); }

std::string KernelDriver() { return FirstLineOf(WholeFile("/proc/driver/nvidia/version")); }

std::string CpuModel() { return ValueOf("/proc/cpuinfo", "model name", ':'); }

std::string CommandLine() {
  std::istringstream words(WholeFile("/proc/self/cmdline"));
  std::string line;
  for (std::string word; std::getline(words, word, '\0');) {
    if (word == kAsRank) continue;  // the launcher's own
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$*?;&|<>()") == word.npos;
    line += (line.empty() ? "" : " ") + (plain ? word : "'" + word + "'");
  }
  return line;
}

RunEnvironment DescribeRank(const RunEnvironment& device) {
  RunEnvironment facts;
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) facts.emplace_back(name, value);
  };
  utsname system{};
  const bool known = uname(&system) == 0;
  const unsigned cpus = std::thread::hardware_concurrency();
  add(kHostEntry, HostName());
  add(kStartEntry, UtcNow());
  add(kCommandEntry, CommandLine());
  add("program", Program());
  for (const auto& [name, value] : device) add(name, value);
  if (MpiStarted()) add("MPI", MpiLibrary());
  add("CPUs", cpus == 0 ? "" : std::to_string(cpus));
  add("kernel",
      known ? fmt::format("{} {} {}", system.sysname, system.release, system.machine) : "");
  add("system", ValueOf("/etc/os-release", "PRETTY_NAME", '='));
  return facts;
}

}  // namespace millrace
