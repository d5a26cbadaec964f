#include "runtime/text/chat/chat_mask.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/text/unicode/nfc.h"

namespace millrace {
namespace {

using nlohmann::json;

bool SaysNothing(const json& value) {
  return value.is_null() || (value.is_structured() && value.empty());
}

std::string TextAt(const json& message, const char* key, const std::string& where) {
  const auto found = message.find(key);
  MR_REQUIRE(ErrorCode::kData, found != message.end(), "{} has no \"{}\"", where, key);
  MR_REQUIRE(ErrorCode::kData, found->is_string(), "{}: \"{}\" is {}; a string is allowed", where,
             key, found->type_name());
  return found->get<std::string>();
}

bool IsLearned(const json& message, const std::string& role, const std::string& where) {
  const bool answer = role == "assistant";
  const auto weight = message.find("weight");
  if (weight == message.end() || weight->is_null()) return answer;
  MR_REQUIRE(ErrorCode::kData, *weight == 0 || (answer && *weight == 1),
             "{}: \"weight\" is {}; allowed are 0 and, of an assistant, 1", where,
             DumpJson(*weight, {.replace = true}));
  return *weight == 1;
}

LearnedMessage ReadMessage(const json& message, const std::string& where) {
  MR_REQUIRE(ErrorCode::kData, message.is_object(), "{} is {}, and not an object", where,
             message.type_name());
  for (const auto& [key, value] : message.items())
    MR_REQUIRE(ErrorCode::kData,
               key == "role" || key == "content" || key == "weight" || SaysNothing(value),
               "{} has \"{}\", which no template renders; role, content and weight are known",
               where, key);
  LearnedMessage read{{TextAt(message, "role", where), TextAt(message, "content", where)}};
  MR_REQUIRE(ErrorCode::kData, !read.message.role.empty(), "{}: \"role\" is empty", where);
  read.learned = IsLearned(message, read.message.role, where);
  return read;
}

// Text between two special tokens, which is encoded as one.
class Stretch {
 public:
  void Add(std::string_view text, bool learned, bool nfc) {
    // Piece by piece as all at once: markup has no character that composes with another.
    const std::string piece = nfc && !IsSurelyNfc(text) ? ToNfc(text) : std::string(text);
    text_ += piece;
    learned_.resize(text_.size(), learned);
  }

  void Encode(TextEncoder& encoder, const std::string& where, MaskedIds& out) {
    const size_t first = out.ids.size();
    encoder.Encode(text_, {SpecialText::kPlain, AroundText::kNothing}, out.ids);
    const Tokenizer& tokenizer = encoder.tokenizer();
    size_t bytes = 0;
    for (size_t i = first; i < out.ids.size(); ++i) bytes += tokenizer.Bytes(out.ids[i]).size();
    // A blank of the tokenizer's own (add_prefix_space) is no byte of the text.
    const size_t prefix = bytes - text_.size();
    MR_REQUIRE(ErrorCode::kData,
               bytes >= text_.size() && prefix <= (tokenizer.add_prefix_space() ? 1u : 0u),
               "{}: the tokens of {} have {} bytes, and the text {}: which of them are an answer's "
               "is not known (has the tokenizer added tokens that strip white space?)",
               where, tokenizer.name(), bytes, text_.size());
    size_t at = 0;
    for (size_t i = first; i < out.ids.size(); ++i) {
      bool learned = false;
      for (const size_t end = at + tokenizer.Bytes(out.ids[i]).size(); at < end; ++at)
        learned |= at >= prefix && learned_[at - prefix];
      out.mask.push_back(learned ? 1 : 0);
    }
    text_.clear();
    learned_.clear();
  }

 private:
  std::string text_;
  std::vector<bool> learned_;  // of each byte
};

}  // namespace

std::vector<LearnedMessage> ReadConversation(const json& object, const std::string& field,
                                             const std::string& where) {
  const auto found = object.find(field);
  MR_REQUIRE(ErrorCode::kData, found != object.end() && found->is_array() && !found->empty(),
             "{} has no list \"{}\" of messages", where, field);
  for (const char* key : {"tools", "functions"})
    if (const auto tools = object.find(key); tools != object.end())
      MR_REQUIRE(ErrorCode::kData, SaysNothing(*tools),
                 "{} has \"{}\", which no template renders: put what the model is to read of them "
                 "into a system message",
                 where, key);
  std::vector<LearnedMessage> messages;
  for (const json& message : *found)
    messages.push_back(
        ReadMessage(message, fmt::format("{}: {}[{}]", where, field, messages.size())));
  return messages;
}

void EncodeConversation(ChatTemplate chat, std::span<const LearnedMessage> messages,
                        TextEncoder& encoder, const std::string& where, MaskedIds& out) {
  std::vector<ChatMessage> texts;
  for (const LearnedMessage& message : messages) texts.push_back(message.message);
  Stretch stretch;
  for (const ChatPiece& piece : RenderChat(chat, texts, false)) {
    const bool learned = piece.authored && messages[piece.message].learned;
    if (piece.kind != ChatPiece::Kind::kToken) {
      stretch.Add(piece.text, learned, encoder.tokenizer().nfc());
      continue;
    }
    stretch.Encode(encoder, where, out);
    const std::optional<int32_t> id = encoder.tokenizer().AddedTokenId(piece.text);
    MR_REQUIRE(ErrorCode::kConfig, id.has_value(),
               "the chat template {} needs the token {}, which {} does not have", Name(chat),
               piece.text, encoder.tokenizer().name());
    out.ids.push_back(*id);
    out.mask.push_back(learned ? 1 : 0);
  }
  stretch.Encode(encoder, where, out);
}

}  // namespace millrace
