#include "runtime/config/json_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kLongestPointer = 256;  // several times that of any key; see Scanner
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Accepts everything that is JSON, and keeps the first error with its place.
class SyntaxCheck final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(size_t) override { return ++depth_ <= kMaxDepth; }
  bool start_array(size_t) override { return ++depth_ <= kMaxDepth; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(size_t position, const std::string& last_token,
                   const json::exception& error) override {
    read_ = position;
    token_ = last_token;
    text_ = error.what();
    return false;
  }

  bool too_deep() const { return depth_ > kMaxDepth; }
  size_t read() const { return read_; }  // bytes read when the error was seen
  const std::string& token() const { return token_; }

  // Without the exception's own name and position.
  std::string text() const {
    const size_t column = text_.find("column ");
    const size_t begin =
        text_.find(column == text_.npos ? "] " : ": ", column == text_.npos ? 0 : column);
    return begin == text_.npos ? text_ : text_.substr(begin + 2);
  }

 private:
  int depth_ = 0;
  size_t read_ = 0;
  std::string token_, text_;
};

// First byte of the token that ends with the last byte read. The lexer's own idea of the token is
// the whole of it only for strings; elsewhere it may begin with what came before.
size_t TokenStart(std::string_view text, const SyntaxCheck& check) {
  const auto in_word = [&](size_t at) {
    return std::isalnum(static_cast<unsigned char>(text[at])) ||
           std::string_view("+-.").find(text[at]) != text.npos;
  };
  if (check.read() == 0 || check.read() > text.size()) return text.size();
  size_t start = check.read() - 1;
  if (text[start] == '"' && check.token().size() > 1 && check.token().size() <= check.read())
    return check.read() - check.token().size();
  while (start > 0 && in_word(start) && in_word(start - 1)) --start;
  return start;
}

JsonTextProblem SyntaxProblem(const std::string& text, const SyntaxCheck& check) {
  if (check.too_deep())
    return {0, fmt::format("objects and lists nested deeper than {}", kMaxDepth)};
  const size_t offset = TokenStart(text, check);
  std::string hint;
  const std::string_view rest = std::string_view(text).substr(offset);
  if (rest.starts_with("N") || rest.starts_with("I") || rest.starts_with("nan") ||
      rest.starts_with("inf") || rest.starts_with("-I") || rest.starts_with("-i"))
    hint = "; JSON has no NaN or infinity";
  else if (rest.starts_with("/") || rest.starts_with("#"))
    hint = "; JSON has no comments";
  else if (rest.starts_with("'"))
    hint = "; strings and keys are written in double quotes";
  return {offset, "not a JSON document: " + check.text() + hint};
}

// Walks text that is known to be JSON. Members whose pointer is too long for any key of ours are
// not kept: each pointer repeats all names around it, so that one long name around many short ones
// would take their product in memory.
class Scanner {
 public:
  Scanner(std::string_view text, std::map<std::string, JsonMember>& members,
          std::vector<JsonTextProblem>& problems)
      : text_(text), members_(members), problems_(problems) {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    Value("");
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  std::string_view String() {  // with its quotes
    const size_t begin = at_++;
    while (text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    return text_.substr(begin, ++at_ - begin);
  }

  void Value(const std::string& pointer) {
    SkipSpace();
    if (text_[at_] == '"') {
      String();
    } else if (text_[at_] == '{') {
      Object(pointer);
    } else if (text_[at_] == '[') {
      List(pointer);
    } else {
      at_ = std::min(text_.find_first_of(" \t\r\n,]}", at_), text_.size());
    }
  }

  void Object(const std::string& pointer) {
    for (++at_, SkipSpace(); text_[at_] != '}'; SkipSpace()) {
      if (text_[at_] == ',') {
        ++at_;
        continue;
      }
      JsonMember member;
      member.key = at_;
      const std::string name = ParseJson(String()).get<std::string>();
      const std::string child = PointerTo(pointer, name);
      SkipSpace();
      ++at_;  // colon
      SkipSpace();
      member.value_begin = at_;
      const bool outer = std::exchange(kept_, kept_ && child.size() <= kLongestPointer);
      Value(kept_ ? child : std::string());
      member.value_end = at_;
      if (!std::exchange(kept_, outer)) continue;
      if (const auto [first, is_new] = members_.emplace(child, member); !is_new) {
        problems_.push_back(
            {member.key, fmt::format("\"{}\" is given twice in one object, first in line {}", name,
                                     PositionOf(text_, first->second.key).line)});
        first->second = member;  // as nlohmann::json: the last one counts
      }
    }
    ++at_;
  }

  void List(const std::string& pointer) {
    int64_t index = 0;
    for (++at_, SkipSpace(); text_[at_] != ']'; SkipSpace()) {
      if (text_[at_] == ',')
        ++at_;
      else
        Value(fmt::format("{}/{}", pointer, index++));
    }
    ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool kept_ = true;
  std::map<std::string, JsonMember>& members_;
  std::vector<JsonTextProblem>& problems_;
};

}  // namespace

TextPosition PositionOf(std::string_view text, size_t offset) {
  TextPosition position;
  for (size_t i = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       i < std::min(offset, text.size()); ++i) {
    if (text[i] == '\n') {
      ++position.line;
      position.column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xc0) !=
               0x80) {  // not the inside of a character
      ++position.column;
    }
  }
  return position;
}

JsonText::JsonText(std::string text) : text_(std::move(text)), root_(std::make_unique<json>()) {
  SyntaxCheck check;
  if (!json::sax_parse(text_, &check)) {
    problems_.push_back(SyntaxProblem(text_, check));
    return;
  }
  *root_ = ParseJson(text_);
  Scanner(text_, members_, problems_);
}

JsonText::~JsonText() = default;
JsonText::JsonText(JsonText&&) noexcept = default;

const JsonMember* JsonText::Find(const std::string& pointer) const {
  const auto it = members_.find(pointer);
  return it == members_.end() ? nullptr : &it->second;
}

std::string PointerTo(const std::string& parent, std::string_view name) {
  std::string pointer = parent + '/';
  for (const char c : name) {
    if (c == '~')
      pointer += "~0";
    else if (c == '/')
      pointer += "~1";
    else
      pointer += c;
  }
  return pointer;
}

}  // namespace millrace
