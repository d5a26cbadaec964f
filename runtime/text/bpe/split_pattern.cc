#include "runtime/text/bpe/split_pattern.h"

#include "runtime/base/error.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

using Bytes = const uint8_t*;

class Scanner {
 public:
  explicit Scanner(Bytes end) : flags_(UnicodeFlags()), end_(end) {}

  CharClass ClassAt(Bytes p) const { return CharClass(flags_[DecodeUtf8(p)] & kClassBits); }
  static Bytes Next(Bytes p) { return p + Utf8Length(*p); }

  // Past the characters of one class from p on.
  Bytes Run(CharClass wanted, Bytes p) const {
    for (;;) {
      while (p < end_ && *p < 0x80 && CharClass(flags_[*p] & kClassBits) == wanted) ++p;
      if (p == end_ || *p < 0x80 || ClassAt(p) != wanted) return p;
      p = Next(p);
    }
  }

  // `\s+(?!\S)|\s+` at a space: all of the run at the end of the text; else all but its last
  // character, which goes with the next word; alone, it is a piece.
  Bytes Spaces(Bytes p) const {
    const Bytes run = Run(CharClass::kSpace, p);
    if (run == end_) return run;
    Bytes last = run - 1;
    while ((*last & 0xc0) == 0x80) --last;
    return last == p ? run : last;
  }

  Bytes end() const { return end_; }

 private:
  const uint8_t* flags_;
  Bytes end_;
};

bool IsNewline(uint8_t byte) { return byte == '\r' || byte == '\n'; }

// `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe; p itself: no match.
Bytes Contraction(Bytes p, Bytes end) {
  if (end - p < 2) return p;
  const uint8_t a = p[1], b = end - p > 2 ? p[2] : 0;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l')) return p + 3;
  return p;
}

// The same in either case.
Bytes AnyCaseContraction(Bytes p, Bytes end) {
  if (end - p < 2) return p;
  if (end - p > 2 && p[1] == 0xc5 && p[2] == 0xbf) return p + 3;  // the long s
  const uint8_t folded[3] = {'\'', uint8_t(p[1] | 0x20), uint8_t(end - p > 2 ? p[2] | 0x20 : 0)};
  return p + (Contraction(folded, folded + (end - p > 2 ? 3 : 2)) - folded);
}

Bytes Gpt2(const Scanner& scan, Bytes p) {
  const Bytes end = scan.end();
  if (*p == '\'') {
    const Bytes contraction = Contraction(p, end);
    if (contraction != p) return contraction;
  }
  CharClass first = scan.ClassAt(p);
  Bytes next = Scanner::Next(p);
  if (*p == ' ' && next < end) {
    const CharClass behind = scan.ClassAt(next);
    if (behind != CharClass::kSpace) {
      first = behind;
      next = Scanner::Next(next);
    }
  }
  return first == CharClass::kSpace ? scan.Spaces(p) : scan.Run(first, next);
}

// `\s*[\r\n]+|\s+(?!\S)|\s+` at a space.
Bytes SpacesToNewline(const Scanner& scan, Bytes p) {
  const Bytes run = scan.Run(CharClass::kSpace, p);
  for (Bytes last = run; last > p; --last)
    if (IsNewline(last[-1])) return last;
  return scan.Spaces(p);
}

// cl100k's, with `\p{N}{1,kMostDigits}`.
template <int kMostDigits>
Bytes Cl100k(const Scanner& scan, Bytes p) {
  const Bytes end = scan.end();
  if (*p == '\'') {
    const Bytes contraction = AnyCaseContraction(p, end);
    if (contraction != p) return contraction;
  }
  const CharClass first = scan.ClassAt(p);
  const Bytes next = Scanner::Next(p);
  if (first == CharClass::kLetter) return scan.Run(CharClass::kLetter, next);
  if (first == CharClass::kNumber) {
    Bytes last = next;
    for (int n = 1; n < kMostDigits && last < end && scan.ClassAt(last) == CharClass::kNumber; ++n)
      last = Scanner::Next(last);
    return last;
  }
  const CharClass behind = next < end ? scan.ClassAt(next) : CharClass::kSpace;
  if (!IsNewline(*p) && behind == CharClass::kLetter) return scan.Run(CharClass::kLetter, next);
  if (first == CharClass::kOther || (*p == ' ' && behind == CharClass::kOther)) {
    Bytes last = scan.Run(CharClass::kOther, next);
    while (last < end && IsNewline(*last)) ++last;
    return last;
  }
  return SpacesToNewline(scan, p);
}

// `\p{N}` alone, or all up to the next of them.
Bytes Digits(const Scanner& scan, Bytes p) {
  if (scan.ClassAt(p) == CharClass::kNumber) return Scanner::Next(p);
  while (p < scan.end() && scan.ClassAt(p) != CharClass::kNumber) p = Scanner::Next(p);
  return p;
}

Bytes Whole(const Scanner& scan, Bytes) { return scan.end(); }

template <Bytes (*kPieceEnd)(const Scanner&, Bytes)>
int Ends(Bytes p, Bytes end, int most, Bytes* ends) {
  const Scanner scan(end);
  int count = 0;
  while (p < end && count < most) p = ends[count++] = kPieceEnd(scan, p);
  return count;
}

}  // namespace

std::optional<SplitPattern> PatternOfRegex(std::string_view regex) {
  for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2})
    if (regex == RegexOfPattern(pattern)) return pattern;
  return std::nullopt;
}

std::string_view RegexOfPattern(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return kGpt2Regex;
    case SplitPattern::kLlama3:
      return kLlama3Regex;
    case SplitPattern::kQwen2:
      return kQwen2Regex;
    case SplitPattern::kWhole:
    case SplitPattern::kDigits:
      break;
  }
  MR_FAIL("this pattern has no regular expression");
}

int PieceEnds(SplitPattern pattern, const uint8_t* begin, const uint8_t* end, int most,
              const uint8_t** ends) {
  switch (pattern) {
    case SplitPattern::kWhole:
      return Ends<Whole>(begin, end, most, ends);
    case SplitPattern::kGpt2:
      return Ends<Gpt2>(begin, end, most, ends);
    case SplitPattern::kLlama3:
      return Ends<Cl100k<3>>(begin, end, most, ends);
    case SplitPattern::kQwen2:
      return Ends<Cl100k<1>>(begin, end, most, ends);
    case SplitPattern::kDigits:
      return Ends<Digits>(begin, end, most, ends);
  }
  MR_FAIL("no such pattern");
}

}  // namespace millrace
