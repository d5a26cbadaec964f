#include "tests/fuzz/html_check.h"

#include <catch2/catch.hpp>

namespace millrace::fuzz {
namespace {

std::string In(const std::string& body) {
  return HtmlProblem("<!doctype html>\n<html>" + body + "</html>\n");
}

TEST_CASE("pages as ours are have no problem") {
  CHECK(In("<head><meta charset=\"utf-8\"><style>a > b { c: \"<\"; }</style></head>") == "");
  CHECK(In("<p class=\"x\">1 &lt; 2 &amp;&amp; &quot;\xe2\x82\xac&quot;</p><svg><path d=\"M0 "
           "0\"/></svg>") == "");
}

TEST_CASE("a page runs the code that it may run, once") {
  const std::string open = "<!doctype html>\n<html><script type=\"application/json\">[1]</script>";
  const std::string code = "<script>if (a < b) f();</script>", end = "</html>\n";
  CHECK(HtmlProblem(open + code + end, "if (a < b) f();") == "");
  CHECK(HtmlProblem(open + end, "f();") == "");
  CHECK_THAT(HtmlProblem(open + code + end, "g();"), Catch::Contains("element script"));
  CHECK_THAT(HtmlProblem(open + code + code + end, "if (a < b) f();"),
             Catch::Contains("element script"));
}

TEST_CASE("whatever text has become markup is found") {
  CHECK_THAT(In("<script>x</script>"), Catch::Contains("element script"));
  CHECK_THAT(In("<script></script>"), Catch::Contains("element script"));
  CHECK_THAT(In("<script type=\"application/json\">{]</script>"), Catch::Contains("no JSON"));
  CHECK_THAT(In("<script type=\"application/json\">\"<\"</script>"), Catch::Contains("no JSON"));
  CHECK_THAT(In("<img src=\"x\">"), Catch::Contains("element img"));
  CHECK_THAT(In("<p onclick=\"x\">a</p>"), Catch::Contains("attribute onclick"));
  CHECK_THAT(In("<p class=\"a\" href=\"b\">c</p>"), Catch::Contains("attribute href"));
  CHECK_THAT(In("<p class=a>b</p>"), Catch::Contains("without a quoted value"));
  CHECK_THAT(In("<p class=\"a<b\">c</p>"), Catch::Contains("not closed"));
  CHECK_THAT(In("<p>a < b</p>"), Catch::Contains("element"));
  CHECK_THAT(In("<p>a > b</p>"), Catch::Contains("a bare >"));
  CHECK_THAT(In("<p>a & b</p>"), Catch::Contains("a bare &"));
  CHECK_THAT(In("<p>a &nbsp; b</p>"), Catch::Contains("a bare &"));
  CHECK_THAT(In("<!-- a -->"), Catch::Contains("element"));
  CHECK_THAT(In("<p>\x01</p>"), Catch::Contains("control character"));
  CHECK_THAT(In("<p>\xff</p>"), Catch::Contains("UTF-8"));
  CHECK_THAT(In("<b><i>a</b></i>"), Catch::Contains("out of turn"));
  CHECK_THAT(In("<div>"), Catch::Contains("out of turn"));
  CHECK_THAT(HtmlProblem("<!doctype html><html>"), Catch::Contains("never closed: html"));
  CHECK_THAT(HtmlProblem("<html></html>"), Catch::Contains("doctype"));
}

}  // namespace
}  // namespace millrace::fuzz
