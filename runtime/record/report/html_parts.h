// What the sections of a run's report are made of. Texts are escaped here; cells
// and bodies are HTML already.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

std::string Short(double value);
std::string KnownBytes(double value);
std::string Milliseconds(double value);

// `numbers`: by column, 'n' for one that stands to the right.
std::string Row(const std::vector<std::string>& cells, std::string_view numbers = "");
std::string Table(const std::vector<std::string>& heads, const std::string& rows,
                  std::string_view numbers = "");
std::string Section(std::string_view id, std::string_view title, const std::string& body,
                    bool wide = false);

std::string Hint(const std::string& text);
std::string Warning(const std::string& text);
std::string Code(const std::string& text);

// A value of summary.json by its path; null where there is none.
const nlohmann::json& At(const nlohmann::json& object, std::initializer_list<const char*> path);
std::string TextOf(const nlohmann::json& value);
double NumberOf(const nlohmann::json& value);  // NaN: no number

}  // namespace millrace
