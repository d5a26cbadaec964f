// A folder that `millrace tokenize` makes says in tokens.json whether it is whole. What else stands
// there is its maker's (runtime/text/tokenize/tokenize_state.h).
#pragma once

#include <string>

namespace millrace {

inline constexpr const char *kMadeFolderState = "tokens.json", *kMadeFolderDone = "done";

// Error(kData) where the maker of the folder has not ended: what is there is a part of the text,
// and would be more when a run goes on. Anything but such a folder passes.
void RequireWholeFolder(const std::string& path);

}  // namespace millrace
