// Counts in words.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace millrace {

// "1 rank", "4 ranks"
template <std::integral T>
std::string Counted(T count, std::string_view what) {
  std::string text = std::to_string(count) + " ";
  text += what;
  if (count != 1) text += 's';
  return text;
}

}  // namespace millrace
