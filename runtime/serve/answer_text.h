// The text of one answer while its tokens come: stop strings are cut off, no character is split,
// and each token goes out with the first byte of text that it has. What pieces hold does not depend
// on when they are taken: end to end they are the whole answer.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/infer/stop_strings.h"
#include "runtime/infer/token_model.h"

namespace millrace {

struct ShownToken {
  SampledToken token;
  int64_t offset = 0;  // characters of the text ahead of it; of the character that it continues
};

struct AnswerPiece {
  std::string text;  // UTF-8
  std::vector<ShownToken> tokens;
  bool empty() const { return text.empty() && tokens.empty(); }
};

class AnswerText {
 public:
  // `offset`: characters ahead of the answer.
  explicit AnswerText(std::vector<std::string> stops, int64_t offset = 0);

  // What may be shown now that a token follows, which adds `bytes`; nothing once stopped().
  AnswerPiece Add(SampledToken token, std::string_view bytes);
  // The rest, at the answer's end.
  AnswerPiece End();
  bool stopped() const { return cut_.stopped(); }

 private:
  AnswerPiece Show(std::string_view bytes, bool all);

  struct Waiting {
    ShownToken token;
    int64_t begin = 0;  // in bytes of the answer
  };
  StopStrings cut_;
  std::deque<Waiting> waiting_;
  std::string partial_;            // shown by cut_, no whole character yet
  std::string count_;              // bytes of the last token that is no whole character yet
  int64_t bytes_ = 0, shown_ = 0;  // added; shown by cut_
  int64_t characters_ = 0;         // whole ones added, with those ahead
};

// Of valid UTF-8.
int64_t CharactersIn(std::string_view text);

}  // namespace millrace
