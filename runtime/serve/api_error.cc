#include "runtime/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

const char* TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

std::string ErrorJson(const ApiError& error) {
  const Json json = {{"error",
                      {{"message", error.message},
                       {"type", TypeOf(error.status)},
                       {"param", OrNull(error.param)},
                       {"code", OrNull(error.code)}}}};
  return DumpJson(json, {.replace = true});
}

}  // namespace millrace
