#include "tests/support/fake_nvml.h"

#include <cstring>

using millrace::test::FakeNvml;

extern "C" {

FakeNvml fake_nvml;

int nvmlInit_v2() {
  if (fake_nvml.init_status == 0) ++fake_nvml.open;
  return fake_nvml.init_status;
}
int nvmlShutdown() {
  --fake_nvml.open;
  return 0;
}
const char* nvmlErrorString(int status) {
  switch (status) {
    case millrace::test::kNvmlNotSupported:
      return "Not Supported";
    case millrace::test::kNvmlNotFound:
      return "Not Found";
    case millrace::test::kNvmlDriverNotLoaded:
      return "Driver Not Loaded";
  }
  return "Unknown Error";
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  if (std::strcmp(uuid, millrace::test::kFakeGpu) != 0) return millrace::test::kNvmlNotFound;
  *gpu = &fake_nvml;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* millijoules) {
  ++fake_nvml.energy_readings;
  if (gpu != &fake_nvml) return millrace::test::kNvmlNotFound;
  if (fake_nvml.energy_status == 0) *millijoules = fake_nvml.millijoules();
  return fake_nvml.energy_status;
}
int nvmlDeviceGetClockInfo(void* gpu, int clock, unsigned* mhz) {
  if (gpu != &fake_nvml || clock != 1) return millrace::test::kNvmlNotFound;  // 1: NVML_CLOCK_SM
  if (fake_nvml.clock_status == 0) *mhz = fake_nvml.sm_mhz();
  return fake_nvml.clock_status;
}

}  // extern "C"
