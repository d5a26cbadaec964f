// HTTP/1.1 over libmicrohttpd for a ServeApi: sockets, limits and time, nothing of what is said.
//
// Limits   A connection has limits.idle_s to begin a request and send its head, and then
//          limits.request_s for the body; what it does not read of an answer for limits.idle_s ends
//          it. A body of more than limits.body_bytes is 413; bodies that are being received have
//          limits.all_bodies bytes together, beyond which one is 503. Headers have
//          limits.header_bytes.
// Leaving  A client that closes its connection, or its own half of it, has its request cancelled,
//          within about 100 ms; one that has not sent all of it, its connection closed in 200.
// Threads  Its own. Its calls by any thread, the destructor by one.
// Errors   Error(kConfig): the address cannot be had.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/serve/serve_api.h"

namespace millrace {

struct HttpLimits {
  int64_t connections = 1000;
  int64_t body_bytes = int64_t{16} << 20, all_bodies = int64_t{256} << 20;
  int64_t header_bytes = 32 << 10;
  double request_s = 30, idle_s = 60;
};

class HttpServer {
 public:
  // An IPv4 or IPv6 address in digits; port 0: one that is free. Takes connections from here on.
  HttpServer(ServeApi& api, const std::string& address, int port, const HttpLimits& limits);
  // Every reply must have ended. Waits for those on their way for up to two seconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  int64_t connections() const;  // open ones

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Whether only this host can reach it: in 127.0.0.0/8, or ::1. Error(kConfig): not an address.
bool IsLoopback(const std::string& address);

}  // namespace millrace
