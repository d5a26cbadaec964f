#include "runtime/base/cuda/capture_gate.h"

#include <map>

namespace millrace {

CaptureGate& CaptureGate::Of(int ordinal) {
  static std::mutex one_looks;
  static auto* const gates = new std::map<int, CaptureGate>;  // threads may outlive static objects
  const std::lock_guard lock(one_looks);
  return (*gates)[ordinal];
}

void CaptureGate::BeginCapture() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waits_ == 0; });
  ++captures_;
}

void CaptureGate::EndCapture() {
  {
    const std::lock_guard lock(mutex_);
    --captures_;
  }
  changed_.notify_all();
}

void CaptureGate::Alone(const std::function<void()>& wait) {
  {
    std::unique_lock lock(mutex_);
    ++waits_;
    changed_.wait(lock, [this] { return captures_ == 0 && !alone_; });
    alone_ = true;
  }
  const auto leave = [this] {
    {
      const std::lock_guard lock(mutex_);
      --waits_;
      alone_ = false;
    }
    changed_.notify_all();
  };
  try {
    wait();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

}  // namespace millrace
