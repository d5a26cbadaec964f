#include "runtime/api/host_facts.h"

#include <cblas.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <sys/utsname.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/cpu/matmul/blas_core.h"
#include "runtime/data/hash.h"

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
  std::ifstream file("/proc/self/exe", std::ios::binary);
  if (!file) return "";
  Hasher128 hash;  // piece by piece: the whole of it in memory was most of a small run's peak
  std::vector<char> piece(1 << 16);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0)
    hash.Update(piece.data(), file.gcount());
  return fmt::format("{}, g++ {}", hash.Hex().substr(0, 16), __VERSION__);
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-11-22T01:02:03Z"] = {};
  return std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0 ? "" : text;
}

}  // namespace

std::string BlasLibrary() {
  cpu::SettleBlasCore();
  return FirstLineOf(openblas_get_config());
}

std::string KernelDriver() { return FirstLineOf(WholeFile("/proc/driver/nvidia/version")); }

std::string CpuModel() { return ValueOf("/proc/cpuinfo", "model name", ':'); }

std::string LoadedFrom(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  if (error || file == std::filesystem::read_symlink("/proc/self/exe", error)) return "";
  return file.string();
}

RunEnvironment DescribeRank(const std::string& command, const RunEnvironment& device) {
  RunEnvironment facts;
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) facts.emplace_back(name, value);
  };
  utsname system{};
  const bool known = uname(&system) == 0;
  const unsigned cpus = std::thread::hardware_concurrency();
  add(kHostEntry, HostName());
  add(kStartEntry, UtcNow());
  add(kCommandEntry, command);
  add("program", Program());
  for (const auto& [name, value] : device) add(name, value);
  add("CPUs", cpus == 0 ? "" : std::to_string(cpus));
  add("kernel",
      known ? fmt::format("{} {} {}", system.sysname, system.release, system.machine) : "");
  add("system", ValueOf("/etc/os-release", "PRETTY_NAME", '='));
  return facts;
}

}  // namespace millrace
