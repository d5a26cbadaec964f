// Text and ids as the endpoint shows them: by a tokenizer, by bytes, or, for a model of token files
// whose tokenizer is not known, ids alone.
//
// Threads  Immutable, for any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace millrace {

enum class TextKind { kTokenizer, kBytes, kIdsOnly };

class ServedText {
 public:
  // `tokenizer`: of kTokenizer. Error(kConfig): it lacks a token of the chat template; a template
  // for ids alone.
  ServedText(TextKind kind, std::shared_ptr<const Tokenizer> tokenizer,
             std::optional<ChatTemplate> chat);

  TextKind kind() const { return kind_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  std::optional<ChatTemplate> chat() const { return chat_; }

  // Errors: kData, text that is not UTF-8; kInvalidArgument where there are ids alone.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const;
  // Ends with what stands ahead of an answer. Error(kInvalidArgument): there is no template.
  std::vector<int32_t> EncodeChat(std::span<const ChatMessage> messages) const;
  // The token that a text which ends an answer names; none: it is text alone.
  std::optional<int32_t> StopToken(std::string_view stop) const;
  // How an answer of the chat template ends: by a token, or by a text; neither without a template.
  std::optional<int32_t> chat_end_token() const;
  std::string chat_end_text() const;

  // A text of more bytes has more than `tokens` tokens.
  int64_t MostBytes(int64_t tokens) const;

  // What an id adds to a text; special tokens add nothing to an answer.
  std::string AnswerBytes(int32_t id) const;
  std::string Bytes(int32_t id) const;
  std::string Decode(std::span<const int32_t> ids) const;  // special tokens too; valid UTF-8

  // A name for log-probabilities: the text, "bytes:\xe2" where that is not UTF-8, "token_id:7"
  // where it has none.
  std::string Name(int32_t id) const;

 private:
  TextKind kind_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;
  int64_t longest_ = 1;  // bytes of a token
};

// Each byte that is not part of a whole character becomes U+FFFD.
std::string ValidUtf8(std::string_view bytes);

}  // namespace millrace
