// One request and its reply on a connection of libmicrohttpd. Internal to tools/serve.
#pragma once

#include <microhttpd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/serve/serve_api.h"

namespace millrace::serve {

// Bytes of bodies on all connections that have not been answered yet.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t bytes) : left_(bytes) {}
  bool Take(int64_t bytes);
  void GiveBack(int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<int64_t> left_;
};

// A thread of libmicrohttpd calls Receive and Answer; Wake comes from the engine's. A connection
// that waits for tokens is suspended, and resumed by Wake.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(ServeApi& api, MHD_Connection* connection, BodyBudget& budget, int64_t most_bytes);
  ~Exchange();

  // The head of the request has come. Whether to go on: MHD_NO closes the connection.
  MHD_Result Begin(const char* method, const char* path);
  MHD_Result Receive(const char* bytes, size_t* count);
  // All of it has come.
  MHD_Result Answer();

  // The client has left: the request is cancelled, the connection closed. By any thread.
  void Leave();
  // The connection is done with it: nothing of that is used any more.
  void End();

 private:
  MHD_Result Refuse(const ApiError& error);
  MHD_Result Send();
  MHD_Response* MakeResponse(const ReplyHead& head);
  void Hold(std::shared_ptr<ReplyBuffer> reply);
  enum class State { kReady, kSuspended, kLeft };
  State Suspend();  // unless there is something to send
  void Wake();
  static ssize_t ReadStream(void* exchange, uint64_t position, char* to, size_t most);
  static void FreeStream(void* exchange);
  void FreeBody();

  ServeApi& api_;
  BodyBudget& budget_;
  const int64_t most_bytes_;
  std::string method_, path_, body_;
  int64_t taken_ = 0;              // of the budget
  std::optional<ApiError> error_;  // known before the body was read

  std::mutex mutex_;
  std::shared_ptr<ReplyBuffer> reply_;  // set once, under mutex_
  MHD_Connection* connection_;          // under mutex_; null: over
  bool suspended_ = false;              // under mutex_
  bool left_ = false;                   // under mutex_
};

}  // namespace millrace::serve
