// JSON that remembers where each member was written. nlohmann::json parses; this adds line and
// column, members given twice, and a limit on nesting.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct TextPosition {
  int line = 1;
  int column = 1;  // in characters (UTF-8), not bytes
};

TextPosition PositionOf(std::string_view text, size_t offset);

struct JsonMember {
  size_t key = 0;          // byte offset of the key's opening quote
  size_t value_begin = 0;  // byte offsets of the value
  size_t value_end = 0;
};

struct JsonTextProblem {
  size_t offset = 0;
  std::string text;
};

class JsonText {
 public:
  // Never throws for bad text: problems() says what is wrong, and root() is
  // null after a syntax error.
  explicit JsonText(std::string text);
  ~JsonText();
  JsonText(JsonText&&) noexcept;

  const nlohmann::json& root() const { return *root_; }
  const std::string& text() const { return text_; }
  const std::vector<JsonTextProblem>& problems() const { return problems_; }

  // By JSON pointer ("/model/layers"); null if there is no such member, or its pointer
  // is longer than 256 bytes.
  const JsonMember* Find(const std::string& pointer) const;

 private:
  std::string text_;
  std::unique_ptr<nlohmann::json> root_;
  std::map<std::string, JsonMember> members_;
  std::vector<JsonTextProblem> problems_;
};

// "/model" + "layers", escaped as JSON pointers are.
std::string PointerTo(const std::string& parent, std::string_view name);

}  // namespace millrace
