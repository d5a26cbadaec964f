#include "tools/cli/text.h"

namespace millrace {

std::vector<int32_t> ByteCodec::Encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteCodec::Decode(std::span<const int32_t> tokens) const {
  std::string bytes;
  for (const int32_t token : tokens)
    bytes += token >= 0 && token < 256 ? static_cast<char>(token) : '?';
  return bytes;
}

std::string ByteCodec::Shown(std::string_view bytes) const { return Printable(bytes); }

std::string Printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const bool printable = (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t';
    text += printable ? c : '?';
  }
  return text;
}

}  // namespace millrace
