// Small things that several verbs show or need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// The byte tokenizer: token = byte.
std::vector<int32_t> TokensOfText(std::string_view text);
// Bytes of the tokens; control characters other than newline and tab, and bytes
// that are not ASCII, as "?".
std::string PrintableText(std::span<const int32_t> tokens);

}  // namespace millrace
