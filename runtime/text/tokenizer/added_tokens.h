// Tokens that are cut out of text before it is split and merged: the "added_tokens" of a
// tokenizer.json.
//
// The leftmost match counts, of those that begin there the longest; the next search begins behind
// it, also where the match is not taken. Source: the documented behaviour of PyPI's tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // taken only where no word character touches it
  bool lstrip = false;       // takes the white space before it, too
  bool rstrip = false;       // and behind it
  bool normalized = false;   // searched in normalized text; its content is normalized as well
  bool special = false;      // left out by a decoder that skips special tokens
};

// What text looks like a special token is: the token, or plain text, as in documents that nobody
// checked.
enum class SpecialText { kToken, kPlain };

class AddedTokenSplitter {
 public:
  // A token, or text between tokens.
  struct Part {
    int32_t id;             // kText: none
    std::string_view text;  // not of a token
  };
  static constexpr int32_t kText = -1;

  // The contents are searched as they are.
  explicit AddedTokenSplitter(std::vector<AddedToken> tokens);

  // Replaces `parts` by those of a text that is not empty; none of them is an empty text.
  void Split(std::string_view text, SpecialText special, std::vector<Part>& parts) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;                       // longest first
  std::array<std::vector<int32_t>, 256> by_first_byte_;  // places in tokens_, longest first
  std::array<bool, 256> begins_ = {};
  int only_first_byte_ = -1;  // if all begin with the same
};

}  // namespace millrace
