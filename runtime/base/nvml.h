// What NVIDIA's management library (NVML) says of a GPU: the energy that it has taken, and its
// clock. The library comes with the driver and is loaded when it is asked for: machines that only
// build have none, nor its header.
//
// Threads  Any; readings of one GPU one at a time.
// Errors   None is thrown: where NVML is missing or does not say, training goes on, and what is
//          printed has the reason instead of a figure.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// As the loader finds it.
inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

struct NvmlReading {
  uint64_t value = 0;   // meaningless with a trouble
  std::string trouble;  // why there is none: "nvmlDeviceGetClockInfo: Not Supported"; "": there is
};

class NvmlGpu {
 public:
  // `uuid` as `nvidia-smi -L` writes it: "GPU-5d3e9a1c-...". CUDA_VISIBLE_DEVICES means nothing to
  // NVML. Takes up to some tenths of a second.
  explicit NvmlGpu(const std::string& uuid, const std::string& library = kNvmlLibrary);
  ~NvmlGpu();
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  // Why no reading will have a value; "": nothing is known against it.
  const std::string& trouble() const { return trouble_; }

  // Taken by the whole board since the driver was loaded. Moves in ticks (energy_ticks.h).
  NvmlReading Millijoules() const;
  // Of the multiprocessors, now.
  NvmlReading SmMhz() const;

 private:
  // A function of the library; `trouble_` says which one it lacks.
  template <class Function>
  Function Find(const char* name);
  std::string Words(const char* function, int status) const;

  std::string trouble_, library_;
  void* opened_ = nullptr;
  bool initialised_ = false;
  void* gpu_ = nullptr;  // nvmlDevice_t
  // NVML's C interface, which does not change: nvmlReturn_t is an int, 0 is success.
  const char* (*error_string_)(int) = nullptr;
  int (*shutdown_)() = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
};

}  // namespace millrace
