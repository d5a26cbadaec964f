// Names by pattern, as shells match files, but that no character is special to it: `*` is any
// number of characters, dots and slashes among them, `?` is one.
#pragma once

#include <string_view>

namespace millrace {

constexpr bool MatchesGlob(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0;
  size_t star = pattern.npos, taken = 0;  // the last `*`, and where in the name what it takes ends
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace millrace
