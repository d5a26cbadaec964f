// Conversations as the text that a model was trained on: named templates, no template language.
//
//   chatml  <|im_start|>ROLE\nCONTENT<|im_end|>\n                 (Qwen and others)
//   llama3  <|begin_of_text|>, then for each message
//           <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, white space around
//           CONTENT left out
//   plain   ROLE:\nCONTENT\n\n                                   (needs no special token)
//
// A template of Jinja is a program: what a model's own one says beyond this (a default system
// message, tools) is for the caller to put into the messages.
//
// Errors  kConfig: no such template, a token that the tokenizer lacks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer/text_encoder.h"

namespace millrace {

enum class ChatTemplate { kChatMl, kLlama3, kPlain };

constexpr std::string_view Name(ChatTemplate chat) noexcept {
  switch (chat) {
    case ChatTemplate::kChatMl:
      return "chatml";
    case ChatTemplate::kLlama3:
      return "llama3";
    case ChatTemplate::kPlain:
      return "plain";
  }
  return "?";
}

// Error(kConfig) says which there are, and that Jinja is not among them.
ChatTemplate ChatTemplateOf(std::string_view name);

struct ChatMessage {
  std::string role, content;
};

// A part of a conversation's text; the texts of all parts, end to end, are the conversation.
struct ChatPiece {
  enum class Kind {
    kToken,    // a special token's text
    kMarkup,   // the template's other text, roles too
    kContent,  // of a message: text that looks like a special token is text
  };
  Kind kind = Kind::kMarkup;
  std::string text;    // never empty
  size_t message = 0;  // its number; the number of messages: the prompt for an answer
  // What the message's author gives: its content, and what ends it. An answer that is learned.
  bool authored = false;
};

// `add_generation_prompt`: what stands ahead of an answer of "assistant" follows.
std::vector<ChatPiece> RenderChat(ChatTemplate chat, std::span<const ChatMessage> messages,
                                  bool add_generation_prompt);

// The end of an answer: a special token's text, or other text that the answer must be cut at.
struct ChatEnd {
  std::string text;
  bool is_token = false;
};
ChatEnd EndOf(ChatTemplate chat);

// The same as a template of Jinja, for clients that render conversations themselves.
std::string_view JinjaOf(ChatTemplate chat);

// The ids of the pieces: those of the whole text, but that no content makes a special token. What
// the tokenizer itself puts around a text is left out, the template has its own.
std::vector<int32_t> EncodeChat(std::span<const ChatPiece> pieces, TextEncoder& encoder);

// What EncodeChat and EndOf need is there; Error(kConfig) naming the first token that is not.
void RequireTokensOf(ChatTemplate chat, const Tokenizer& tokenizer);

}  // namespace millrace
