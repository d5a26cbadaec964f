#include "runtime/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

uint8_t FlagsAt(const char* p) {
  return UnicodeFlags()[DecodeUtf8(reinterpret_cast<const uint8_t*>(p))];
}

// The place of the last character before `at`, which is not 0.
size_t CharacterBefore(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  return at;
}

bool IsSpace(std::string_view text, size_t at) {
  return CharClass(FlagsAt(text.data() + at) & kClassBits) == CharClass::kSpace;
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && (FlagsAt(text.data() + CharacterBefore(text, begin)) & kWordFlag)) ||
         (end < text.size() && (FlagsAt(text.data() + end) & kWordFlag));
}

size_t BeginOfSpacesBefore(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = CharacterBefore(text, at);
    if (!IsSpace(text, before)) break;
    at = before;
  }
  return at;
}

size_t EndOfSpacesBehind(std::string_view text, size_t at) {
  while (at < text.size() && IsSpace(text, at)) at += Utf8Length(static_cast<uint8_t>(text[at]));
  return at;
}

}  // namespace

AddedTokenSplitter::AddedTokenSplitter(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const auto first = static_cast<uint8_t>(tokens_[i].content[0]);
    by_first_byte_[first].push_back(static_cast<int32_t>(i));
    begins_[first] = true;
  }
  if (std::count(begins_.begin(), begins_.end(), true) == 1)
    only_first_byte_ =
        static_cast<int>(std::find(begins_.begin(), begins_.end(), true) - begins_.begin());
}

const AddedToken* AddedTokenSplitter::LongestAt(std::string_view text, size_t at) const {
  for (const int32_t place : by_first_byte_[static_cast<uint8_t>(text[at])])
    if (text.substr(at).starts_with(tokens_[place].content)) return &tokens_[place];
  return nullptr;
}

void AddedTokenSplitter::Split(std::string_view text, SpecialText special,
                               std::vector<Part>& parts) const {
  parts.clear();
  size_t done = 0;  // where the last token's part ended
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    if (only_first_byte_ >= 0) {
      const void* const found = std::memchr(text.data() + at, only_first_byte_, text.size() - at);
      if (found == nullptr) break;
      at = static_cast<const char*>(found) - text.data();
    }
    const AddedToken* const token =
        begins_[static_cast<uint8_t>(text[at])] ? LongestAt(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->special && special == SpecialText::kPlain) continue;
    if (token->single_word && TouchesWord(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(BeginOfSpacesBefore(text, begin), done);
    if (token->rstrip) end = EndOfSpacesBehind(text, end);
    if (done < begin) parts.push_back({kText, text.substr(done, begin - done)});
    parts.push_back({token->id, {}});
    done = end;
  }
  if (done < text.size()) parts.push_back({kText, text.substr(done)});
}

}  // namespace millrace
