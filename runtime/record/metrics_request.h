// A client's HTTP request as far as MetricsServer looks at it: is there more to come, and is it GET
// /metrics. Any bytes are a request; how they arrive in pieces makes no difference.
//
// Source  RFC 9112, sections 2 to 3; a line may end without its carriage return.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

class MetricsRequest {
 public:
  static constexpr size_t kMostBytes = 8192;  // what is longer is cut off there

  // What has come since the last call. True: nothing more need be read, an empty
  // line or too much has come.
  bool Add(std::string_view bytes);
  // "GET /metrics HTTP/1.x", a query is ignored.
  bool AsksForMetrics() const;
  size_t bytes() const { return text_.size(); }

 private:
  std::string text_;
};

}  // namespace millrace
