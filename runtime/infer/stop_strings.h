// Ends a text at the first of some strings, while the text comes piece by piece. What may be the
// beginning of one is held back until it is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

class StopStrings {
 public:
  // Empty strings are not allowed: Error(kInternal).
  explicit StopStrings(std::vector<std::string> stops);

  // What may be shown now that `piece` follows; nothing once stopped().
  std::string Add(std::string_view piece);
  // What was held back, at the text's end.
  std::string End();
  // One of the strings has come; it and what follows are not shown. The one that ends first counts,
  // of several that end together the longest.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace millrace
