#include "runtime/text/bpe/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

constexpr int kSymbols = 0x100 + 68;  // the highest is that of 0xad

struct Alphabet {
  std::array<uint16_t, 256> symbol = {};
  std::array<int16_t, kSymbols> byte = {};  // -1: stands for none

  constexpr Alphabet() {
    byte.fill(-1);
    int others = 0;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      symbol[b] = static_cast<uint16_t>(printable ? b : 0x100 + others++);
      byte[symbol[b]] = static_cast<int16_t>(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::optional<std::string> BytesOfSymbols(std::string_view symbols) {
  std::string bytes;
  const auto* p = reinterpret_cast<const uint8_t*>(symbols.data());
  const uint8_t* const end = p + symbols.size();
  for (; p < end; p += Utf8Length(*p)) {
    const uint32_t code = DecodeUtf8(p);
    if (code >= kSymbols || kAlphabet.byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[code]);
  }
  return bytes;
}

std::string SymbolsOfBytes(std::string_view bytes) {
  std::string symbols;
  for (const char byte : bytes) AppendUtf8(kAlphabet.symbol[static_cast<uint8_t>(byte)], symbols);
  return symbols;
}

}  // namespace millrace
