// Text that arrives in pieces to ids, and ids that arrive one by one to text.
//
// A StreamEncoder gives the ids of the whole text, however it is cut. It encodes up to the last
// place that no token can span whatever follows, a letter with a blank or newline behind it, and
// keeps the rest. Text without such places (Chinese without a blank) is kept until Finish.
//
// Errors  kData: text that is not UTF-8, with the offset of the byte in the whole text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer/text_encoder.h"

namespace millrace {

// Finds where text may be cut: encoded apart, both parts together have the ids of the whole.
class TextCutter {
 public:
  explicit TextCutter(const Tokenizer& tokenizer);
  explicit TextCutter(SplitPattern pattern);  // into pieces alone

  // The last place in (from, text.size()) to cut at; 0: none. A place is the offset of the byte
  // behind the cut; `from` need not begin a character.
  int64_t LastCut(std::string_view text, int64_t from) const;

 private:
  bool IsCut(std::string_view text, int64_t at) const;

  bool possible_;     // the tokenizer splits words, and no added token spans or looks across a cut
  bool newlines_;     // a newline may follow the cut as well as a blank
  uint8_t unstable_;  // flags of letters that are not to stand before one
};

class StreamEncoder {
 public:
  // The encoder must outlive it.
  StreamEncoder(TextEncoder& encoder, const EncodeOptions& options);

  void Push(std::string_view text, std::vector<int32_t>& ids);
  void Finish(std::vector<int32_t>& ids);  // the text's end; then another text may begin

 private:
  void EncodePending(int64_t bytes, std::vector<int32_t>& ids);

  TextEncoder& encoder_;
  EncodeOptions options_;
  TextCutter cutter_;
  std::string pending_;
  int64_t done_ = 0;    // bytes of the text before pending_
  bool begun_ = false;  // the template's prefix is out
};

// Gives out whole characters only: the bytes of a character may come with several ids.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, SpecialTokens special)
      : tokenizer_(tokenizer), special_(special) {}

  std::string Push(int32_t id);  // what may be shown by now
  std::string Finish();          // what is left of a character that is not whole

 private:
  const Tokenizer& tokenizer_;
  SpecialTokens special_;
  std::string pending_;  // at most 3 bytes
};

}  // namespace millrace
