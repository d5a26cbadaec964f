#include "runtime/infer/page_pool.h"

#include <limits>

#include "runtime/base/error.h"

namespace millrace {

PagePool::PagePool(int64_t pages) {
  MR_CHECK(pages >= 0 && pages <= std::numeric_limits<int32_t>::max(), "{} pages", pages);
  counts_.resize(static_cast<size_t>(pages));
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

std::vector<int32_t> PagePool::Take(int64_t count) {
  MR_CHECK(count >= 0 && count <= free(), "{} pages are taken, and {} are free", count, free());
  std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - pages.size());
  for (const int32_t page : pages) counts_[static_cast<size_t>(page)] = 1;
  return pages;
}

int64_t& PagePool::CountOf(int32_t page, const char* what) {
  const auto at = static_cast<size_t>(page);
  MR_CHECK(page >= 0 && at < counts_.size() && counts_[at] > 0, "page {} of {} {}, and is not out",
           page, counts_.size(), what);
  return counts_[at];
}

void PagePool::Share(std::span<const int32_t> pages) {
  for (const int32_t page : pages) ++CountOf(page, "is shared");
}

void PagePool::GiveBack(std::span<const int32_t> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page)
    if (--CountOf(*page, "comes back") == 0) free_.push_back(*page);
}

}  // namespace millrace
