#include "runtime/text/tokenizer/token_stream.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

bool IsBlank(char byte) { return byte == ' ' || byte == '\n'; }

// Whether the character that ends before byte `at` is a letter, without any of the `not_flags`.
bool LetterBefore(std::string_view text, int64_t at, uint8_t not_flags) {
  int64_t first = at - 1;
  while (first > 0 && (static_cast<uint8_t>(text[first]) & 0xc0) == 0x80) --first;
  // What is not UTF-8 is refused later; here it must only not be read beyond.
  if (first + Utf8Length(static_cast<uint8_t>(text[first])) != at) return false;
  const uint32_t code = DecodeUtf8(reinterpret_cast<const uint8_t*>(text.data() + first));
  if (code >= 0x110000) return false;
  const uint8_t flags = UnicodeFlags()[code];
  return CharClass(flags & kClassBits) == CharClass::kLetter && (flags & not_flags) == 0;
}

// Whether this added token may lie across a cut or ask what is beyond one.
bool SpansCuts(const AddedToken& token) {
  const std::string& text = token.content;
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t at = 1; at < size; ++at)
    if (IsBlank(text[at]) && LetterBefore(text, at, 0)) return true;
  return (token.rstrip && LetterBefore(text, size, 0)) || (token.single_word && IsBlank(text[0]));
}

bool SplitsWords(SplitPattern pattern) {
  return pattern != SplitPattern::kWhole && pattern != SplitPattern::kDigits;
}

}  // namespace

TextCutter::TextCutter(const Tokenizer& tokenizer)
    : possible_(SplitsWords(tokenizer.byte_level_split())),
      newlines_(!tokenizer.add_prefix_space()),
      // Under NFC a letter may become one with a mark behind it, which is none.
      unstable_(tokenizer.nfc() ? kUnstableFlag : 0) {
  for (const SplitPattern pattern : tokenizer.splits()) possible_ |= SplitsWords(pattern);
  for (const auto* added : {&tokenizer.raw_added(), &tokenizer.normalized_added()})
    for (const AddedToken& token : added->tokens()) possible_ &= !SpansCuts(token);
}

TextCutter::TextCutter(SplitPattern pattern)
    : possible_(SplitsWords(pattern)), newlines_(true), unstable_(0) {}

bool TextCutter::IsCut(std::string_view text, int64_t at) const {
  return (text[at] == ' ' || (text[at] == '\n' && newlines_)) && LetterBefore(text, at, unstable_);
}

int64_t TextCutter::LastCut(std::string_view text, int64_t from) const {
  if (!possible_) return 0;
  for (int64_t at = static_cast<int64_t>(text.size()) - 1; at > from; --at)
    if (IsCut(text, at)) return at;
  return 0;
}

StreamEncoder::StreamEncoder(TextEncoder& encoder, const EncodeOptions& options)
    : encoder_(encoder), options_(options), cutter_(encoder.tokenizer()) {}

void StreamEncoder::EncodePending(int64_t bytes, std::vector<int32_t>& ids) {
  const std::string_view text = std::string_view(pending_).substr(0, static_cast<size_t>(bytes));
  const int64_t invalid = FindInvalidUtf8(text);
  MR_REQUIRE(ErrorCode::kData, invalid < 0, "byte {} (0x{:02x}) of the text is not UTF-8",
             done_ + invalid, static_cast<uint8_t>(text[invalid]));
  encoder_.Encode(text, {options_.special, AroundText::kNothing}, ids);
  pending_.erase(0, static_cast<size_t>(bytes));
  done_ += bytes;
}

void StreamEncoder::Push(std::string_view text, std::vector<int32_t>& ids) {
  if (!begun_ && options_.around == AroundText::kTemplate) {
    const auto prefix = encoder_.tokenizer().prefix();
    ids.insert(ids.end(), prefix.begin(), prefix.end());
  }
  begun_ = true;
  const int64_t looked = std::max<int64_t>(0, static_cast<int64_t>(pending_.size()) - 1);
  pending_ += text;
  const int64_t cut = cutter_.LastCut(pending_, looked);
  if (cut > 0) EncodePending(cut, ids);
}

void StreamEncoder::Finish(std::vector<int32_t>& ids) {
  Push("", ids);
  EncodePending(static_cast<int64_t>(pending_.size()), ids);
  if (options_.around == AroundText::kTemplate) {
    const auto suffix = encoder_.tokenizer().suffix();
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  done_ = 0;
  begun_ = false;
}

std::string StreamDecoder::Push(int32_t id) {
  if (special_ == SpecialTokens::kKeep || !tokenizer_.IsSpecial(id))
    pending_ += tokenizer_.Bytes(id);
  const auto whole = pending_.size() - static_cast<size_t>(IncompleteTail(pending_));
  std::string text = pending_.substr(0, whole);
  pending_.erase(0, whole);
  return text;
}

std::string StreamDecoder::Finish() { return std::exchange(pending_, {}); }

}  // namespace millrace
