#include "runtime/serve/answer_text.h"

#include <algorithm>
#include <utility>

#include "runtime/serve/served_text.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

// Takes the whole characters off `bytes`, as valid UTF-8.
std::string TakeWhole(std::string& bytes) {
  const auto tail = static_cast<size_t>(IncompleteTail(bytes));
  std::string whole = ValidUtf8(std::string_view(bytes).substr(0, bytes.size() - tail));
  bytes.erase(0, bytes.size() - tail);
  return whole;
}

}  // namespace

int64_t CharactersIn(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

AnswerText::AnswerText(std::vector<std::string> stops, int64_t offset)
    : cut_(std::move(stops)), characters_(offset) {}

AnswerPiece AnswerText::Add(SampledToken token, std::string_view bytes) {
  if (stopped()) return {};
  waiting_.push_back({{std::move(token), characters_}, bytes_});
  bytes_ += std::ssize(bytes);
  count_ += bytes;
  characters_ += CharactersIn(TakeWhole(count_));
  return Show(cut_.Add(bytes), false);
}

AnswerPiece AnswerText::End() { return Show(cut_.End(), !stopped()); }

// Of an answer that has stopped, tokens behind the cut are not part.
AnswerPiece AnswerText::Show(std::string_view bytes, bool all) {
  AnswerPiece piece;
  shown_ += std::ssize(bytes);
  partial_ += bytes;
  piece.text = TakeWhole(partial_);
  if (all || stopped()) piece.text += ValidUtf8(std::exchange(partial_, {}));
  while (!waiting_.empty()) {
    const int64_t begin = waiting_.front().begin;
    const bool has_none = waiting_.size() > 1 ? waiting_[1].begin == begin : bytes_ == begin;
    if (!all && begin >= shown_ && !(has_none && begin == shown_)) break;
    piece.tokens.push_back(std::move(waiting_.front().token));
    waiting_.pop_front();
  }
  if (stopped()) waiting_.clear();
  return piece;
}

}  // namespace millrace
