// Conversations as ids and a mask of the targets among them: the answers that a model learns.
//
// A token counts if a byte of it is of an answer: of an assistant's content, or of what ends it.
// Text between two special tokens is encoded as one (chat_template.h), so that a token may have the
// end of what is ahead of an answer in it, and the answer's first bytes.
//
// Errors  kData, beginning with `where`: a conversation that no template renders; a tokenizer whose
//         tokens do not have the bytes of the text (added tokens that strip white space).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/text/chat/chat_template.h"
#include "runtime/text/tokenizer/text_encoder.h"

namespace millrace {

struct LearnedMessage {
  ChatMessage message;
  bool learned = false;  // of an assistant, and not of weight 0
};

// {"messages": [{"role": ..., "content": ...}, ...]} as `field` of an object: one message or more,
// texts both. "weight" 0 of an answer leaves it out of the targets, 1 does not; what else would
// have to be rendered (tool calls, tools beside the messages, parts of contents) is refused.
std::vector<LearnedMessage> ReadConversation(const nlohmann::json& object, const std::string& field,
                                             const std::string& where);

struct MaskedIds {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // of each, 1: it is learned
};

// Appends the conversation's ids, which are EncodeChat's, and their mask.
void EncodeConversation(ChatTemplate chat, std::span<const LearnedMessage> messages,
                        TextEncoder& encoder, const std::string& where, MaskedIds& out);

}  // namespace millrace
