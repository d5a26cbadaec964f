#include "runtime/text/chat/chat_template.h"

#include <optional>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Kind = ChatPiece::Kind;

// What stands around each message. An empty text is left out.
struct Frame {
  struct Part {
    Kind kind;
    std::string_view text;
  };
  Part begin;        // of the conversation
  Part before_role;  // of each message
  Part after_role[2];
  Part end, after_end;
  bool trims;  // white space around contents
};

constexpr Frame kFrames[] = {
    {.begin = {Kind::kToken, ""},
     .before_role = {Kind::kToken, "<|im_start|>"},
     .after_role = {{Kind::kMarkup, "\n"}, {Kind::kMarkup, ""}},
     .end = {Kind::kToken, "<|im_end|>"},
     .after_end = {Kind::kMarkup, "\n"},
     .trims = false},
    {.begin = {Kind::kToken, "<|begin_of_text|>"},
     .before_role = {Kind::kToken, "<|start_header_id|>"},
     .after_role = {{Kind::kToken, "<|end_header_id|>"}, {Kind::kMarkup, "\n\n"}},
     .end = {Kind::kToken, "<|eot_id|>"},
     .after_end = {Kind::kMarkup, ""},
     .trims = true},
    {.begin = {Kind::kToken, ""},
     .before_role = {Kind::kToken, ""},
     .after_role = {{Kind::kMarkup, ":\n"}, {Kind::kMarkup, ""}},
     .end = {Kind::kMarkup, "\n\n"},
     .after_end = {Kind::kMarkup, ""},
     .trims = false},
};

const Frame& FrameOf(ChatTemplate chat) { return kFrames[static_cast<size_t>(chat)]; }

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

class Renderer {
 public:
  void Add(const Frame::Part& part, size_t message, bool authored = false) {
    Add(part.kind, part.text, message, authored);
  }
  void Add(Kind kind, std::string_view text, size_t message, bool authored) {
    if (!text.empty()) pieces_.push_back({kind, std::string(text), message, authored});
  }
  void Head(const Frame& frame, std::string_view role, size_t message) {
    Add(frame.before_role, message);
    Add(Kind::kMarkup, role, message, false);
    for (const Frame::Part& part : frame.after_role) Add(part, message);
  }
  std::vector<ChatPiece> Take() { return std::move(pieces_); }

 private:
  std::vector<ChatPiece> pieces_;
};

}  // namespace

ChatTemplate ChatTemplateOf(std::string_view name) {
  for (const ChatTemplate chat :
       {ChatTemplate::kChatMl, ChatTemplate::kLlama3, ChatTemplate::kPlain})
    if (name == Name(chat)) return chat;
  MR_REQUIRE(ErrorCode::kConfig, false,
             "the chat template \"{}\" is not known; there are chatml, llama3 and plain, and no "
             "templates of Jinja",
             name);
  return {};
}

std::vector<ChatPiece> RenderChat(ChatTemplate chat, std::span<const ChatMessage> messages,
                                  bool add_generation_prompt) {
  const Frame& frame = FrameOf(chat);
  Renderer renderer;
  renderer.Add(frame.begin, 0);
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view content = messages[i].content;
    renderer.Head(frame, messages[i].role, i);
    renderer.Add(Kind::kContent, frame.trims ? Trimmed(content) : content, i, true);
    renderer.Add(frame.end, i, true);
    renderer.Add(frame.after_end, i);
  }
  if (add_generation_prompt) renderer.Head(frame, "assistant", messages.size());
  return renderer.Take();
}

ChatEnd EndOf(ChatTemplate chat) {
  const Frame::Part& end = FrameOf(chat).end;
  return {std::string(end.text), end.kind == Kind::kToken};
}

std::string_view JinjaOf(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::kChatMl:
      return "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
             "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    case ChatTemplate::kLlama3:
      return "{{ '<|begin_of_text|>' }}{% for message in messages %}"
             "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
             "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
             "{% if add_generation_prompt %}"
             "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
    case ChatTemplate::kPlain:
      return "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + "
             "'\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}";
  }
  return "";
}

// Text between two tokens is encoded as one, so that its ids are those of the whole text.
std::vector<int32_t> EncodeChat(std::span<const ChatPiece> pieces, TextEncoder& encoder) {
  constexpr EncodeOptions kText = {SpecialText::kPlain, AroundText::kNothing};
  std::vector<int32_t> ids;
  std::string text;
  for (const ChatPiece& piece : pieces) {
    if (piece.kind != Kind::kToken) {
      text += piece.text;
      continue;
    }
    encoder.Encode(text, kText, ids);
    text.clear();
    const std::optional<int32_t> id = encoder.tokenizer().AddedTokenId(piece.text);
    MR_REQUIRE(ErrorCode::kConfig, id.has_value(),
               "the chat template needs the token {}, which {} does not have", piece.text,
               encoder.tokenizer().name());
    ids.push_back(*id);
  }
  encoder.Encode(text, kText, ids);
  return ids;
}

void RequireTokensOf(ChatTemplate chat, const Tokenizer& tokenizer) {
  const ChatMessage message{"user", "text"};
  for (const ChatPiece& piece : RenderChat(chat, {&message, 1}, true))
    MR_REQUIRE(ErrorCode::kConfig,
               piece.kind != Kind::kToken || tokenizer.AddedTokenId(piece.text).has_value(),
               "the chat template {} needs the token {}, which {} does not have", Name(chat),
               piece.text, tokenizer.name());
}

}  // namespace millrace
