// Named ranges of a thread's time that a profiler shows above the device's work.
// Implementation: runtime/base/cuda/nvtx_ranges. Null where nobody listens: what would be said
// is then not even put together.
//
// Threads  Ranges nest, per thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

namespace millrace {

enum class RangeName : uint32_t {};

class ProfilerRanges {
 public:
  virtual ~ProfilerRanges() = default;
  // For a range that is begun many times. Of one text always the same name;
  // valid as long as this object.
  virtual RangeName Register(const std::string& text) = 0;
  virtual void Begin(RangeName name) = 0;
  virtual void Begin(const std::string& text) = 0;
  // Ends the range that this thread has begun last.
  virtual void End() = 0;
};

// The range of a scope. Null: none.
class RangeScope {
 public:
  RangeScope(ProfilerRanges* ranges, RangeName name) : ranges_(ranges) {
    if (ranges_ != nullptr) ranges_->Begin(name);
  }
  // text() is called where somebody listens.
  template <std::invocable F>
  RangeScope(ProfilerRanges* ranges, F&& text) : ranges_(ranges) {
    if (ranges_ != nullptr) ranges_->Begin(std::string(std::forward<F>(text)()));
  }
  ~RangeScope() {
    if (ranges_ != nullptr) ranges_->End();
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  ProfilerRanges* ranges_;
};

}  // namespace millrace
