#include "tests/fuzz/html_check.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

namespace millrace::fuzz {
namespace {

constexpr std::string_view kDocument = "<!doctype html>";
constexpr std::array<std::string_view, 40> kElements = {
    "html",    "head",    "meta",    "title",      "style", "body",  "header",   "main",
    "section", "figure",  "h1",      "h2",         "h3",    "p",     "div",      "span",
    "b",       "i",       "code",    "table",      "thead", "tbody", "tr",       "th",
    "td",      "details", "summary", "figcaption", "svg",   "path",  "polyline", "line",
    "rect",    "ul",      "li",      "pre",        "br",    "a",     "button",   "script"};
constexpr std::array<std::string_view, 28> kAttributes = {
    "lang",      "charset",    "name",
    "content",   "class",      "id",
    "style",     "viewBox",    "preserveAspectRatio",
    "role",      "aria-label", "d",
    "points",    "x",          "y",
    "x1",        "x2",         "y1",
    "y2",        "width",      "height",
    "open",      "colspan",    "title",
    "cx",        "cy",         "type",
    "http-equiv"};
constexpr std::array<std::string_view, 5> kReferences = {"&amp;", "&lt;", "&gt;", "&quot;",
                                                         "&#39;"};

template <size_t n>
bool Known(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Checker {
 public:
  Checker(std::string_view page, std::string_view code) : left_(page), code_(code) {}

  std::string Run() {
    try {
      const std::string quoted = nlohmann::json(std::string(left_)).dump();
    } catch (const nlohmann::json::type_error&) {
      return "not UTF-8";
    }
    if (!Take(kDocument)) return "no doctype";
    while (!left_.empty() && problem_.empty()) left_.front() == '<' ? Tag() : Text('\0');
    if (problem_.empty() && !open_.empty()) problem_ = "never closed: " + open_.back();
    return problem_;
  }

 private:
  bool Take(std::string_view text) {
    const bool here = left_.starts_with(text);
    if (here) left_.remove_prefix(text.size());
    return here;
  }

  std::string_view Name() {
    size_t size = 0;
    while (size < left_.size() && IsName(left_[size])) ++size;
    const std::string_view name = left_.substr(0, size);
    left_.remove_prefix(size);
    return name;
  }

  void Problem(std::string text) {
    problem_ = text + " before: " + std::string(left_.substr(0, 80));
  }

  // Up to a tag, or to `end` inside an attribute.
  void Text(char end) {
    while (!left_.empty() && left_.front() != '<' && (end == '\0' || left_.front() != end)) {
      const char c = left_.front();
      if (c == '&') {
        if (std::none_of(kReferences.begin(), kReferences.end(),
                         [&](auto reference) { return Take(reference); }))
          return Problem("a bare &");
        continue;
      }
      const auto code = static_cast<unsigned char>(c);
      if (c == '>' || (code < 0x20 && c != '\n' && c != '\t') || code == 0x7f)
        return Problem("a bare > or a control character");
      left_.remove_prefix(1);
    }
  }

  void Tag() {
    left_.remove_prefix(1);
    if (Take("/")) {
      const std::string name(Name());
      if (open_.empty() || open_.back() != name || !Take(">"))
        return Problem("closed out of turn: " + name);
      return open_.pop_back();
    }
    const std::string name(Name());
    if (!Known(kElements, name)) return Problem("element " + name);
    bool data = false;
    while (Take(" ")) {
      data = data || left_.starts_with("type=\"application/json\"");
      const std::string attribute(Name());
      if (!Known(kAttributes, attribute)) return Problem("attribute " + attribute);
      if (!Take("=\"")) return Problem("attribute " + attribute + " without a quoted value");
      Text('"');
      if (!problem_.empty()) return;
      if (!Take("\"")) return Problem("attribute " + attribute + " is not closed");
    }
    if (Take("/>")) return;
    if (!Take(">")) return Problem("a tag that does not end: " + name);
    if (name == "meta" || name == "br") return;
    if (name == "script") return Script(data);
    if (name == "style") {  // a browser reads on to the end tag, whatever is in between
      const size_t end = left_.find("</style>");
      if (end == left_.npos) return Problem("a style that does not end");
      left_.remove_prefix(end + 8);
      return;
    }
    open_.push_back(name);
  }

  // What a browser would run is `code_`, once, and nothing else.
  void Script(bool data) {
    const size_t end = left_.find("</script");
    const std::string_view text = left_.substr(0, end);
    if (end == left_.npos || (!data && (code_.empty() || text != code_)))
      return Problem("element script");
    if (data &&
        (nlohmann::json::parse(text, nullptr, false).is_discarded() || text.find('<') != text.npos))
      return Problem("data that are no JSON");
    if (!data) code_ = {};
    left_.remove_prefix(end);
    if (!Take("</script>")) Problem("a script that does not end");
  }

  std::string_view left_, code_;
  std::vector<std::string> open_;
  std::string problem_;
};

}  // namespace

std::string HtmlProblem(std::string_view page, std::string_view code) {
  const size_t last = page.find_last_not_of('\n');
  return Checker(page.substr(0, last + 1), code).Run();
}

}  // namespace millrace::fuzz
