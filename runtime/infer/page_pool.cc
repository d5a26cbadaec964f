#include "runtime/infer/page_pool.h"

#include <limits>

#include "runtime/base/error.h"

namespace millrace {

PagePool::PagePool(int64_t pages) {
  MR_CHECK(pages >= 0 && pages <= std::numeric_limits<int32_t>::max(), "{} pages", pages);
  out_.resize(static_cast<size_t>(pages));
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

std::vector<int32_t> PagePool::Take(int64_t count) {
  MR_CHECK(count >= 0 && count <= free(), "{} pages are taken, and {} are free", count, free());
  std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - pages.size());
  for (const int32_t page : pages) out_[static_cast<size_t>(page)] = true;
  return pages;
}

void PagePool::GiveBack(std::span<const int32_t> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    MR_CHECK(
        *page >= 0 && *page < static_cast<int64_t>(out_.size()) && out_[static_cast<size_t>(*page)],
        "page {} of {} comes back, and is not out", *page, out_.size());
    out_[static_cast<size_t>(*page)] = false;
    free_.push_back(*page);
  }
}

}  // namespace millrace
