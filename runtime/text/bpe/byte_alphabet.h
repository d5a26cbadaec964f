// The 256 characters that stand for bytes in files of byte-level tokenizers: printable characters
// of Latin-1 for themselves, the others for U+0100, U+0101, ... in order. A blank is U+0120.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// The bytes that the characters stand for; none if one is not of the 256.
std::optional<std::string> BytesOfSymbols(std::string_view symbols);

std::string SymbolsOfBytes(std::string_view bytes);  // UTF-8

}  // namespace millrace
