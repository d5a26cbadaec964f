// Which pages of a model's caches are whose: a count and a list, no memory of its own.
//
// Order    What is handed out depends on the calls before alone, so that ranks which make the same
//          calls give out the same pages.
// Errors   Error(kInternal): more pages than are free, or a page given back that is not out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  std::vector<int32_t> Take(int64_t count);
  void GiveBack(std::span<const int32_t> pages);

 private:
  std::vector<int32_t> free_;  // the next at the end
  std::vector<bool> out_;      // by page
};

}  // namespace millrace
