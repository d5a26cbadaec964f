#include "runtime/run/eval/python_text.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/runtime/data/error_matchers.h"

namespace millrace {
namespace {

// Right-hand sides are Python 3.11's.
TEST_CASE("a text's first letter becomes a capital, the others small", "[eval][text]") {
  struct Row {
    const char *text, *expected;
  };
  for (const auto& [text, expected] :
       std::vector<Row>{{"", ""},
                        {"he THEN", "He then"},
                        {"[he] THEN", "[he] then"},
                        {"élan DE L'ÉCOLE ×÷", "Élan de l'école ×÷"},
                        {"ÿ", "Ÿ"},
                        {"ßA", "Ssa"},
                        {"µM", "Μm"},
                        {"x ŞĆŸ ΑΩ ЖЁ 中文 😀 …", "X şćÿ αω жё 中文 😀 …"},
                        {"5° CAFÉ", "5° café"},
                        {"“Quoted” TEXT", "“quoted” text"}})
    CHECK(Capitalized(text) == expected);
  RequireError(ErrorCode::kData, {"U+0130", "byte offset 1"}, [] { Capitalized("aİ"); });
  RequireError(ErrorCode::kData, {"U+03A3"}, [] { Capitalized("xΟΔΟΣ"); });
  RequireError(ErrorCode::kData, {"U+015F", "byte offset 0"}, [] { Capitalized("ş"); });
}

TEST_CASE("blanks are those of Python", "[eval][text]") {
  CHECK(Stripped(" \t\xc2\xa0 a b \xe2\x80\x83\n\x1c") == "a b");
  CHECK(Stripped("\xe3\x80\x80") == "");
  CHECK(Stripped("\xe2\x80\x8b a") == "\xe2\x80\x8b a");  // a space of no width is none
  CHECK(StrippedRight(" a \xc2\x85") == " a");
  CHECK(CountWords("") == 1);
  CHECK(CountWords("one") == 1);
  CHECK(CountWords("one two\n\n three") == 3);
  CHECK(CountWords(" one ") == 3);  // empty ones at both ends
  CHECK(CountWords("a\xe2\x80\x83\xc2\xa0z") == 2);
}

TEST_CASE("brackets go with what is in them, line by line", "[eval][text]") {
  CHECK(WithoutBrackets("a [b] c") == "a  c");
  CHECK(WithoutBrackets("[a][[b]]c") == "]c");
  CHECK(WithoutBrackets("[a\nb] [c") == "[a\nb] [c");
  CHECK(WithoutBrackets("[a[\n[b]") == "[a[\n");
  CHECK(WithoutBrackets("[]") == "");
  CHECK(Replaced("a    b   c", "  ", " ") == "a  b  c");
  CHECK(Replaced("x [title]y [title]", " [title]", ". ") == "x. y. ");
}

TEST_CASE("what is no UTF-8 is named with its place", "[eval][text]") {
  RequireUtf8("a\xc3\xa9\xf0\x9f\x98\x80", "x");
  for (const std::string bad : {"ab\xff", "ab\xc3", "ab\xc0\x80", "ab\xe0\x80\x80",
                                "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xf0\x9f\x98", "ab\x80"})
    RequireError(ErrorCode::kData, {"the text", "byte offset 2"},
                 [&] { RequireUtf8(bad, "the text"); });
  CHECK(CountCharacters("a\xc3\xa9\xf0\x9f\x98\x80") == 3);
}

}  // namespace
}  // namespace millrace
