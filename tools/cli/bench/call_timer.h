// How much of a step a rank spends inside kernels and communicators; the rest is the host's own
// work: walking the plan, events, arguments. On a host device a kernel runs when it is issued, so
// that the host's time to issue a step can only be told apart this way.
//
// Threads  One timer per process at a time (a kernel is a plain function and finds its timer in a
//          static), used by one thread.
#pragma once

#include <chrono>

#include "comm/comm_factory.h"
#include "kernels/ops/kernel_table.h"

namespace millrace {

class CallTimer final : public CommFactory {
 public:
  // Both outlive the timer.
  CallTimer(const KernelTable& kernels, CommFactory& factory);
  ~CallTimer() override;

  // The same kernels; with the timer on, each call is timed.
  const KernelTable& kernels() const { return timed_; }

  // The same communicators, likewise.
  int rank() const noexcept override { return factory_.rank(); }
  int world_size() const noexcept override { return factory_.world_size(); }
  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override;
  std::unique_ptr<Communicator> MakeSmall(const std::vector<int>& ranks,
                                          const std::string& label) override;
  std::unique_ptr<DeviceBuffer> AllocateArena(Device& device, int64_t bytes,
                                              const std::string& label) override {
    return factory_.AllocateArena(device, bytes, label);
  }
  std::string WhyArenaStays() const override { return factory_.WhyArenaStays(); }

  void TurnOn() { on_ = true; }  // off at first: an untimed call costs one more jump
  double seconds() const { return std::chrono::duration<double>(inside_).count(); }

  // Times the scope it lives in, when the timer is on.
  class Scope {
   public:
    explicit Scope(CallTimer& timer)
        : timer_(timer), begin_(timer.on_ ? Clock::now() : Clock::time_point{}) {}
    ~Scope() {
      if (timer_.on_) timer_.inside_ += Clock::now() - begin_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallTimer& timer_;
    const std::chrono::steady_clock::time_point begin_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  CommFactory& factory_;
  KernelTable timed_;
  bool on_ = false;
  Clock::duration inside_{};
};

}  // namespace millrace
