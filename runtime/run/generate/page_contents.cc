#include "runtime/run/generate/page_contents.h"

#include <algorithm>

#include "runtime/base/philox.h"

namespace millrace {
namespace {

constexpr uint64_t kNothing = 0x7061676573;  // "pages": the hash of no tokens

uint64_t Behind(uint64_t hash, int32_t token) {
  const PhiloxCounter words = PhiloxBlock(hash, 0, static_cast<uint32_t>(token));
  return uint64_t{words[1]} << 32 | words[0];
}

}  // namespace

PageContents::PageContents(int64_t pages, int64_t page_tokens)
    : page_tokens_(page_tokens), pages_(static_cast<size_t>(pages)) {}

void PageContents::Clear() { std::fill(pages_.begin(), pages_.end(), Page{}); }

void PageContents::Write(std::span<const int32_t> pages, int64_t first,
                         std::span<const int32_t> tokens) {
  const auto page_of = [&](int64_t position) -> Page& {
    return pages_[static_cast<size_t>(pages[static_cast<size_t>(position / page_tokens_)])];
  };
  for (int64_t position = first; const int32_t token : tokens) {
    const int64_t place = position % page_tokens_;
    Page& page = page_of(position);
    if (place == 0) page = {0, position == 0 ? kNothing : page_of(position - 1).hash};
    page.cached = page.cached == place ? place + 1 : kUnknown;
    page.hash = Behind(page.hash, token);
    ++position;
  }
}

void PageContents::WillWrite(std::span<const int32_t> pages, int64_t position) {
  Page& page = pages_[static_cast<size_t>(pages[static_cast<size_t>(position / page_tokens_)])];
  if (page.cached != position % page_tokens_) page.cached = kUnknown;
}

std::optional<int32_t> PageContents::FirstWithout(std::span<const int32_t> pages,
                                                  std::span<const int32_t> tokens) const {
  uint64_t hash = kNothing;
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(page_tokens_)) {
    for (const int32_t token : tokens.subspan(begin, static_cast<size_t>(page_tokens_)))
      hash = Behind(hash, token);
    const int32_t name = pages[begin / static_cast<size_t>(page_tokens_)];
    const Page& page = pages_[static_cast<size_t>(name)];
    if (page.cached != page_tokens_ || page.hash != hash) return name;
  }
  return std::nullopt;
}

}  // namespace millrace
