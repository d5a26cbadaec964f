// A CUDA event with a time, for benches that time calls by themselves.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/base/cuda/cuda_check.h"

namespace millrace::testing {

class TimedEvent {
 public:
  TimedEvent() { MR_CUDA(cudaEventCreate(&event_)); }
  ~TimedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace millrace::testing
