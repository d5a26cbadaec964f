// The endpoint without its transport: a request's method, path and body to a reply. What of
// OpenAI's API is there, and what its clients and lm-eval need beside it: README.md.
//
// Threads  Any number, at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/reply_buffer.h"
#include "runtime/serve/request_parser.h"
#include "runtime/serve/serve_engine.h"
#include "runtime/serve/served_text.h"

namespace millrace {

struct ServeApiOptions {
  std::string model = "millrace";               // its name for clients
  std::vector<std::string> bearer_tokens = {};  // none: no authorization is asked for
  RequestLimits limits = {};
  int64_t max_tokens = 0;                 // of an answer; 0: as many as fit
  std::optional<int32_t> end_token = {};  // ends every answer
};

class ServeApi {
 public:
  // `engine` and `text` outlive it and its replies.
  ServeApi(ServeEngine& engine, const ServedText& text, ServeApiOptions options);

  // What is wrong before a body has been read: no such path (404), another method (405), no token
  // (401; every path but /health needs one), a web page that asks where no token is needed (403):
  // whatever a browser shows can reach loopback. The two headers' values, or empty.
  std::optional<ApiError> Check(std::string_view method, std::string_view path,
                                std::string_view authorization, std::string_view origin) const;
  // The reply to a request that passes Check. HEAD is GET. Its reader may Abandon it at any time.
  std::shared_ptr<ReplyBuffer> Answer(std::string_view method, std::string_view path,
                                      std::string_view body);

 private:
  std::shared_ptr<ReplyBuffer> Complete(std::variant<CompletionRequest, ApiError> parsed);
  std::optional<ApiError> Encode(const CompletionRequest& request,
                                 std::vector<std::vector<int32_t>>& prompts) const;
  std::optional<ApiError> AddRequest(const CompletionRequest& request, std::vector<int32_t> prompt,
                                     std::vector<GenerationRequest>& requests) const;
  std::string Models() const;
  std::string Health() const;
  std::string TokenizerInfo() const;
  void Tokenize(std::string_view body, ReplyBuffer& reply) const;
  void Detokenize(std::string_view body, ReplyBuffer& reply) const;
  bool IsAuthorized(std::string_view authorization) const;

  ServeEngine& engine_;
  const ServedText& text_;
  const ServeApiOptions options_;
  const int64_t created_;
  std::atomic<uint64_t> next_id_;
};

}  // namespace millrace
