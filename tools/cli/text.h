// Text and tokens, as verbs need them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// From text to tokens and back. Verbs know no other way.
class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  // The bytes of the tokens, one after another: perhaps no whole characters.
  virtual std::string Decode(std::span<const int32_t> tokens) const = 0;
  // Decoded bytes for a terminal.
  virtual std::string Shown(std::string_view bytes) const = 0;
  // The token that a text ending an answer names; none: it is text alone. Error(kConfig): it is
  // written as special tokens are, and there is none of that name.
  virtual std::optional<int32_t> StopToken(std::string_view) const { return std::nullopt; }
};

// token = byte; other tokens are "?".
class ByteCodec final : public TextCodec {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> tokens) const override;
  std::string Shown(std::string_view bytes) const override;  // Printable
};

// For a terminal: control characters other than newline and tab, and bytes that are not ASCII, as
// "?".
std::string Printable(std::string_view bytes);

}  // namespace millrace
