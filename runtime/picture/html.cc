#include "runtime/picture/html.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {

std::string HtmlText(std::string_view text) {
  using nlohmann::json;
  // The JSON writer knows UTF-8: dumped with replacements and read again, text is well-formed.
  const std::string sound =
      ParseJson(DumpJson(json(std::string(text)), {.replace = true})).get<std::string>();
  std::string out;
  out.reserve(sound.size());
  for (const char c : sound) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7f)
      out += "\xEF\xBF\xBD";  // U+FFFD
    else
      out += c;
  }
  return out;
}

std::string Row(const std::vector<std::string>& cells, std::string_view numbers) {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i)
    row += fmt::format("<td{}>{}</td>",
                       i < numbers.size() && numbers[i] == 'n' ? " class=\"n\"" : "", cells[i]);
  return row + "</tr>\n";
}

std::string Table(const std::vector<std::string>& heads, const std::string& rows,
                  std::string_view numbers) {
  std::string html = "<table><thead><tr>";
  for (size_t i = 0; i < heads.size(); ++i)
    html += fmt::format("<th{}>{}</th>",
                        i < numbers.size() && numbers[i] == 'n' ? " class=\"n\"" : "", heads[i]);
  return html + "</tr></thead><tbody>\n" + rows + "</tbody></table>\n";
}

std::string Section(std::string_view id, std::string_view title, const std::string& body,
                    bool wide) {
  return fmt::format("<section class=\"card{}\" id=\"{}\">\n<h2>{}</h2>\n{}</section>\n",
                     wide ? " wide" : "", id, title, body);
}

std::string Hint(const std::string& text) {
  return "<p class=\"hint\">" + HtmlText(text) + "</p>\n";
}
std::string Warning(const std::string& text) {
  return "<p class=\"warn\">" + HtmlText(text) + "</p>\n";
}
std::string Code(const std::string& text) { return "<code>" + HtmlText(text) + "</code>"; }

}  // namespace millrace
