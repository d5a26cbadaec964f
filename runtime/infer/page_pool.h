// Which pages of a model's caches are whose: counts and a list, no memory of its own.
//
// Counts   A page that several sequences share is out until each of them has given it back.
// Order    What is handed out depends on the calls before alone, so that ranks which make the same
//          calls give out the same pages.
// Errors   Error(kInternal): more pages than are free; a page shared or given back that is not out.
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
  void Share(std::span<const int32_t> pages);  // with one more, who gives them back, too
  void GiveBack(std::span<const int32_t> pages);

 private:
  int64_t& CountOf(int32_t page, const char* what);  // of a page that is out

  std::vector<int32_t> free_;    // the next at the end
  std::vector<int64_t> counts_;  // by page: who has it; 0: free
};

}  // namespace millrace
