// Normalization form C, as PyPI's tokenizers does it: with the tables of Unicode 9 (its crate's),
// so that characters that came later stay as they are. Source: Unicode Standard Annex 15.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

// Whether NFC would surely leave the text as it is: a look at each character. Text is valid UTF-8.
bool IsSurelyNfc(std::string_view text);

std::string ToNfc(std::string_view text);

}  // namespace millrace
