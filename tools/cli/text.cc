#include "tools/cli/text.h"

namespace millrace {

std::vector<int32_t> TokensOfText(std::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string PrintableText(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    const bool printable = (token >= 0x20 && token < 0x7f) || token == '\n' || token == '\t';
    text += printable ? static_cast<char>(token) : '?';
  }
  return text;
}

}  // namespace millrace
