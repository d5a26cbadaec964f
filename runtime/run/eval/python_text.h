// What lm-eval does to texts with Python's str, over UTF-8: blanks are those of str.isspace, and
// lengths are counted in code points. Texts are valid UTF-8 (RequireUtf8).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// Error(kData) naming `what` and the byte offset where `text` is no UTF-8.
void RequireUtf8(std::string_view text, std::string_view what);

int64_t CountCharacters(std::string_view text);

std::string_view Stripped(std::string_view text);  // str.strip()
std::string_view StrippedRight(std::string_view text);

// len(re.split(r"\s+", text)): one more than there are runs of blanks.
int64_t CountWords(std::string_view text);

// str.replace.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to);

// re.sub(r"\[.*?\]", "", text): a bracket to the next closing one on its line.
std::string WithoutBrackets(std::string_view text);

// str.capitalize(): the first character in capitals, the others in small letters. Knows the letters
// of Latin-1 everywhere, those of Latin Extended-A, Greek and Cyrillic behind the first, and what
// has no case; other characters: Error(kData) naming the character.
std::string Capitalized(std::string_view text);

}  // namespace millrace
