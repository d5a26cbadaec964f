#include "runtime/record/report/html_parts.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/plan/report/plan_text.h"
#include "runtime/record/report/chart.h"

namespace millrace {

using nlohmann::json;

std::string Short(double value) { return fmt::format("{:.6g}", value); }
std::string KnownBytes(double value) {
  return std::isfinite(value) && std::abs(value) < 0x1p62 ? BytesText(std::llround(value))
                                                          : "not known";
}
std::string Milliseconds(double value) { return fmt::format("{:.4g} ms", value); }

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

const json& At(const json& object, std::initializer_list<const char*> path) {
  static const json kNone;
  const json* at = &object;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return kNone;
    at = &(*at)[key];
  }
  return *at;
}

std::string TextOf(const json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value, {.replace = true});
}

double NumberOf(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace millrace
