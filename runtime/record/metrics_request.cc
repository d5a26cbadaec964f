#include "runtime/record/metrics_request.h"

namespace millrace {

bool MetricsRequest::Add(std::string_view bytes) {
  // The line before the empty one may have ended with what came before.
  const size_t looked_at = text_.size() < 2 ? 0 : text_.size() - 2;
  text_ += bytes.substr(0, kMostBytes - text_.size());
  return text_.size() == kMostBytes || text_.find("\n\r\n", looked_at) != std::string::npos ||
         text_.find("\n\n", looked_at) != std::string::npos;
}

bool MetricsRequest::AsksForMetrics() const {
  const std::string_view request = text_;
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  constexpr std::string_view kBegin = "GET /metrics";
  if (!line.starts_with(kBegin)) return false;
  const std::string_view rest = line.substr(kBegin.size());
  const size_t space = rest.find(' ');
  if (space == std::string_view::npos || (space > 0 && rest[0] != '?')) return false;
  return rest.substr(space + 1).starts_with("HTTP/1.");
}

}  // namespace millrace
