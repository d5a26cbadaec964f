#include "runtime/infer/stop_strings.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) MR_CHECK(!stop.empty(), "a stop string is empty");
}

// A character at a time: what one long piece shows is what its characters one by one would.
std::string StopStrings::Add(std::string_view piece) {
  std::string shown;
  for (const char c : piece) {
    if (stopped_) break;
    held_ += c;
    size_t begin = std::string::npos;  // of the earliest stop that ends here
    size_t open = held_.size();        // of the earliest stop that may still come
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop)) begin = std::min(begin, held_.size() - stop.size());
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > 0; --n)
        if (std::string_view(held_).substr(held_.size() - n) ==
            std::string_view(stop).substr(0, n)) {
          open = std::min(open, held_.size() - n);
          break;
        }
    }
    stopped_ = begin != std::string::npos;
    const size_t end = stopped_ ? begin : open;
    shown += held_.substr(0, end);
    held_.erase(0, end);
  }
  if (stopped_) held_.clear();
  return shown;
}

std::string StopStrings::End() { return std::exchange(held_, {}); }

}  // namespace millrace
