// Captures of a GPU's streams, and waits for all of a GPU. CUDA lets them not overlap: a wait for a
// device, one of whose streams is captured by whatever thread for whatever run, fails, and the
// capture with it. So a wait begins when no capture is left, and a capture when no wait is.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

namespace millrace {

class CaptureGate {
 public:
  // Of a GPU, for all of the process.
  static CaptureGate& Of(int ordinal);

  // Around a capture, of which there may be several at once; both on any thread.
  void BeginCapture();
  void EndCapture();
  // `wait` alone. No capture of this thread's is on its way.
  void Alone(const std::function<void()>& wait);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int captures_ = 0;
  int waits_ = 0;  // running or to come: captures that have not begun come behind them
  bool alone_ = false;
};

}  // namespace millrace
