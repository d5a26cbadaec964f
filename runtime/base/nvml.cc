#include "runtime/base/nvml.h"

#include <dlfcn.h>
#include <fmt/core.h>

namespace millrace {
namespace {

constexpr int kClockOfSm = 1;  // NVML_CLOCK_SM

}  // namespace

template <class Function>
Function NvmlGpu::Find(const char* name) {
  void* const function = dlsym(opened_, name);
  if (function == nullptr && trouble_.empty())
    trouble_ = fmt::format("{} has no {}", library_, name);
  return reinterpret_cast<Function>(function);
}

std::string NvmlGpu::Words(const char* function, int status) const {
  if (error_string_ == nullptr) return fmt::format("{}: status {}", function, status);
  return fmt::format("{}: {}", function, error_string_(status));
}

NvmlGpu::NvmlGpu(const std::string& uuid, const std::string& library) : library_(library) {
  // Never closed: its threads and statics live as long as the process.
  opened_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened_ == nullptr) {
    trouble_ = dlerror();
    return;
  }
  const auto init = Find<int (*)()>("nvmlInit_v2");
  const auto by_uuid = Find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByUUID");
  error_string_ = Find<const char* (*)(int)>("nvmlErrorString");
  shutdown_ = Find<int (*)()>("nvmlShutdown");
  energy_ = Find<int (*)(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
  clock_ = Find<int (*)(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
  if (!trouble_.empty()) return;
  if (const int status = init(); status != 0) {
    trouble_ = Words("nvmlInit_v2", status);
    return;
  }
  initialised_ = true;
  if (const int status = by_uuid(uuid.c_str(), &gpu_); status != 0)
    trouble_ = Words(fmt::format("nvmlDeviceGetHandleByUUID of {}", uuid).c_str(), status);
}

NvmlGpu::~NvmlGpu() {
  if (initialised_) (void)shutdown_();
}

NvmlReading NvmlGpu::Millijoules() const {
  if (!trouble_.empty()) return {0, trouble_};
  unsigned long long millijoules = 0;
  const int status = energy_(gpu_, &millijoules);
  if (status != 0) return {0, Words("nvmlDeviceGetTotalEnergyConsumption", status)};
  return {millijoules, ""};
}

NvmlReading NvmlGpu::SmMhz() const {
  if (!trouble_.empty()) return {0, trouble_};
  unsigned mhz = 0;
  const int status = clock_(gpu_, kClockOfSm, &mhz);
  if (status != 0) return {0, Words("nvmlDeviceGetClockInfo", status)};
  return {mhz, ""};
}

}  // namespace millrace
