// Suggestions for misspelt names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace {

// What a user meant by the unknown key `path`: a known key or section, by edit distance over whole
// paths and over last parts, or the key that another trainer's name stands for (n_layer,
// hidden_size). Empty: nothing is near.
std::string NearestKey(std::string_view path);

// The item of `names` nearest to `word`. Empty: nothing is near.
std::string NearestName(std::string_view word, std::span<const std::string_view> names);

}  // namespace millrace
