// What tokens have been cached in which pages, by hashes: a sequence that is said to begin behind a
// prefix which others have cached is held to it. Host memory, no caches.
//
// Errors   None of its own; pages and positions are checked by whoever calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace {

class PageContents {
 public:
  PageContents(int64_t pages, int64_t page_tokens);

  void Clear();

  // Tokens are cached at positions [first, first + tokens.size()) of the sequence with these pages.
  void Write(std::span<const int32_t> pages, int64_t first, std::span<const int32_t> tokens);

  // A token that nobody knows yet is about to be cached there: what was there before is no more.
  // Write says which it was, in its turn.
  void WillWrite(std::span<const int32_t> pages, int64_t position);

  // The first of `pages` that does not hold its part of a sequence which begins with `tokens`,
  // whole pages; none: all do.
  std::optional<int32_t> FirstWithout(std::span<const int32_t> pages,
                                      std::span<const int32_t> tokens) const;

 private:
  // What keys and values of a position are depends on all tokens up to there.
  struct Page {
    int64_t cached = 0;  // positions; kUnknown: written in another order than theirs
    uint64_t hash = 0;   // of all tokens of the sequence up to the last of these
  };
  static constexpr int64_t kUnknown = -1;

  const int64_t page_tokens_;
  std::vector<Page> pages_;
};

}  // namespace millrace
