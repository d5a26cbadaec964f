// Documents of a block of text (text_blocks.h) as ids: of text, of lists of ids, of conversations.
//
//   text      a file, or the string `field` of a JSON line
//   ids       the list `field` of a JSON line, as it is
//   messages  the conversation `field` of a JSON line, with a mask of its answers
//             (chat/chat_mask.h)
//
// Errors  kData, with file and line: what ForEachPart, ForEachLine and ReadConversation refuse; an
//         id outside the vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat/chat_mask.h"
#include "runtime/text/chat/chat_template.h"
#include "runtime/text/tokenize/text_blocks.h"
#include "runtime/text/tokenizer/text_encoder.h"

namespace millrace {

enum class DocumentForm { kText, kIds, kMessages };

constexpr std::string_view Name(DocumentForm form) noexcept {
  return form == DocumentForm::kText ? "text" : form == DocumentForm::kIds ? "ids" : "messages";
}

struct DocumentOptions {
  DocumentForm form = DocumentForm::kText;
  // Of JSON lines. "": text or messages, as the form is called; of ids the one of ids, input_ids,
  // tokens and token_ids that a line has.
  std::string field = {};
  ChatTemplate chat = ChatTemplate::kChatMl;  // of messages
  // An id behind each document, which is no target of a mask.
  std::optional<int32_t> separator = {};
  SpecialText special = SpecialText::kPlain;  // of text
};

struct EncodedDocuments {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // of messages: one for each id; else empty
  int64_t documents = 0, text_bytes = 0;
};

class DocumentEncoder {
 public:
  // No tokenizer: of ids alone, which are below `vocab`.
  DocumentEncoder(const Tokenizer* tokenizer, int64_t vocab, const DocumentOptions& options);

  EncodedDocuments Encode(const TextBlock& block);

 private:
  void AddText(const TextBlock& block, EncodedDocuments& out);
  void AddIds(const TextBlock& block, EncodedDocuments& out);
  void AddMessages(const TextBlock& block, EncodedDocuments& out);
  void EndDocument(EncodedDocuments& out) const;

  std::optional<TextEncoder> encoder_;
  int64_t vocab_;
  DocumentOptions options_;
};

}  // namespace millrace
