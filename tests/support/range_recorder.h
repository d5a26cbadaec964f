// Keeps what a profiler would be told.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/profiler_ranges.h"

namespace millrace::test {

// Ranges as they come, each with those around it: "a", then "a|b" for b within a.
class RangeRecorder final : public ProfilerRanges {
 public:
  RangeName Register(const std::string& text) override {
    ++registered;
    for (size_t i = 0; i < names_.size(); ++i)
      if (names_[i] == text) return static_cast<RangeName>(i);
    names_.push_back(text);
    return static_cast<RangeName>(names_.size() - 1);
  }
  void Begin(RangeName name) override { Begin(names_.at(static_cast<size_t>(name))); }
  void Begin(const std::string& text) override {
    open_.push_back(open_.empty() ? text : open_.back() + "|" + text);
    seen.push_back(open_.back());
  }
  void End() override {
    MR_CHECK(!open_.empty(), "the end of a range that was not begun");
    open_.pop_back();
  }
  bool closed() const { return open_.empty(); }

  std::vector<std::string> seen;
  int registered = 0;  // calls of Register

 private:
  std::vector<std::string> names_, open_;
};

}  // namespace millrace::test
