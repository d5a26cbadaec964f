// Pieces of HTML that a page's sections are made of. `text` is escaped here; cells and bodies are
// HTML already.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Text in HTML, also in an attribute. What is not UTF-8, and control characters, become replacement
// characters.
std::string HtmlText(std::string_view text);

// `numbers`: by column, 'n' for one that stands to the right.
std::string Row(const std::vector<std::string>& cells, std::string_view numbers = "");
std::string Table(const std::vector<std::string>& heads, const std::string& rows,
                  std::string_view numbers = "");
std::string Section(std::string_view id, std::string_view title, const std::string& body,
                    bool wide = false);

std::string Hint(const std::string& text);
std::string Warning(const std::string& text);
std::string Code(const std::string& text);

}  // namespace millrace
