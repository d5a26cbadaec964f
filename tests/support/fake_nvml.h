// NVML of a machine with one GPU, kFakeGpu, which says what a test wants. A library of its own that
// is loaded by its path, as the driver's is by its name.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <stdexcept>

namespace millrace::test {

inline constexpr const char* kFakeNvml = "tests/support/fake_nvml.so";
inline constexpr const char* kFakeGpu = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

// nvmlReturn_t
inline constexpr int kNvmlNotSupported = 3, kNvmlNotFound = 6, kNvmlDriverNotLoaded = 9;

struct FakeNvml {
  int init_status = 0, energy_status = 0, clock_status = 0;
  unsigned long long (*millijoules)() = [] { return 0ULL; };
  unsigned (*sm_mhz)() = [] { return 0U; };
  int open = 0;  // nvmlInit_v2 without its nvmlShutdown
  int energy_readings = 0;
};

// As new. The library's own, of which a process has one.
inline FakeNvml& NewFakeNvml() {
  void* const library = dlopen(kFakeNvml, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  auto& fake = *static_cast<FakeNvml*>(dlsym(library, "fake_nvml"));
  return fake = {};
}

inline double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A counter of a GPU that takes kWatts all the time, in ticks of `kTickMs`.
template <int kWatts, int kTickMs>
unsigned long long SteadyCounter() {
  const auto ticks = static_cast<unsigned long long>(1e3 * SecondsNow() / kTickMs);
  return ticks * kTickMs * kWatts;  // ms * W = mJ
}

}  // namespace millrace::test
