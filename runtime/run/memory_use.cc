#include "runtime/run/memory_use.h"

#include <fstream>
#include <string>

namespace millrace {
namespace {

int64_t PeakResidentBytes() {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line))
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

}  // namespace

int64_t MemoryBytes(const Device& device) {
  const int64_t used = device.UsedBytes();
  return used > 0 ? used : PeakResidentBytes();
}

}  // namespace millrace
