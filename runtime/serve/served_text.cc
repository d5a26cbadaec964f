#include "runtime/serve/served_text.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

constexpr int64_t kCacheBytes = 1 << 16;  // of an encoder; a prompt has few pieces
constexpr int32_t kBytes = 256;

std::string Escaped(std::string_view bytes) {
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return name;
}

}  // namespace

ServedText::ServedText(TextKind kind, std::shared_ptr<const Tokenizer> tokenizer,
                       std::optional<ChatTemplate> chat)
    : kind_(kind), tokenizer_(std::move(tokenizer)), chat_(chat) {
  MR_CHECK_EQ(kind == TextKind::kTokenizer, tokenizer_ != nullptr, "a tokenizer");
  MR_REQUIRE(ErrorCode::kConfig, !chat || kind != TextKind::kIdsOnly,
             "the chat template {} needs texts, and this model's tokenizer is not known "
             "(data.tokenizer)",
             millrace::Name(*chat));
  if (!tokenizer_) return;
  if (chat) RequireTokensOf(*chat, *tokenizer_);
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id)
    longest_ = std::max(longest_, std::ssize(tokenizer_->Bytes(id)));
  // White space around an added token is part of it.
  for (const AddedTokenSplitter* added :
       {&tokenizer_->raw_added(), &tokenizer_->normalized_added()})
    for (const AddedToken& token : added->tokens())
      if (token.lstrip || token.rstrip) longest_ = std::numeric_limits<int32_t>::max();
}

std::vector<int32_t> ServedText::Encode(std::string_view text, bool add_special_tokens) const {
  switch (kind_) {
    case TextKind::kTokenizer:
      return TextEncoder(*tokenizer_, kCacheBytes)
          .Encode(text, {SpecialText::kToken,
                         add_special_tokens ? AroundText::kTemplate : AroundText::kNothing});
    case TextKind::kBytes: {
      const auto bytes = std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
      return {bytes.begin(), bytes.end()};
    }
    case TextKind::kIdsOnly:
      break;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "this model's tokenizer is not known: texts cannot be taken, lists of ids can");
}

std::vector<int32_t> ServedText::EncodeChat(std::span<const ChatMessage> messages) const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, chat_.has_value(),
             "this server has no chat template; it needs --chat-template");
  const std::vector<ChatPiece> pieces = RenderChat(*chat_, messages, true);
  if (tokenizer_) {
    TextEncoder encoder(*tokenizer_, kCacheBytes);
    return millrace::EncodeChat(pieces, encoder);
  }
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return Encode(text, false);
}

std::optional<int32_t> ServedText::StopToken(std::string_view stop) const {
  return tokenizer_ ? tokenizer_->AddedTokenId(stop) : std::nullopt;
}

std::optional<int32_t> ServedText::chat_end_token() const {
  if (!chat_ || !tokenizer_) return std::nullopt;
  const ChatEnd end = EndOf(*chat_);
  return end.is_token ? tokenizer_->AddedTokenId(end.text) : std::nullopt;
}

std::string ServedText::chat_end_text() const {
  return chat_ && !chat_end_token() ? EndOf(*chat_).text : std::string();
}

// NFC makes a text at most three times as short.
int64_t ServedText::MostBytes(int64_t tokens) const { return 3 * longest_ * tokens; }

std::string ServedText::Bytes(int32_t id) const {
  if (tokenizer_) return std::string(tokenizer_->Bytes(id));
  return kind_ == TextKind::kBytes && id < kBytes ? std::string(1, static_cast<char>(id)) : "";
}

std::string ServedText::AnswerBytes(int32_t id) const {
  return tokenizer_ && tokenizer_->IsSpecial(id) ? "" : Bytes(id);
}

std::string ServedText::Decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += Bytes(id);
  return ValidUtf8(bytes);
}

std::string ServedText::Name(int32_t id) const {
  const std::string bytes = Bytes(id);
  if (bytes.empty()) return fmt::format("token_id:{}", id);
  return FindInvalidUtf8(bytes) < 0 ? bytes : Escaped(bytes);
}

// Each byte that begins no whole character is one U+FFFD.
std::string ValidUtf8(std::string_view bytes) {
  std::string text;
  for (;;) {
    const int64_t bad = FindInvalidUtf8(bytes);
    text += bytes.substr(0, bad < 0 ? bytes.npos : static_cast<size_t>(bad));
    if (bad < 0) return text;
    text += "\xef\xbf\xbd";
    bytes.remove_prefix(static_cast<size_t>(bad) + 1);
  }
}

}  // namespace millrace
