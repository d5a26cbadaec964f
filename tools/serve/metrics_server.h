// The figures of the newest step for Prometheus, over HTTP by libmicrohttpd, while a run goes on.
// Rank 0 has one.
//
// Requests  GET /metrics (a query is ignored) is answered with 200 and the figures' text, every
//           other one, HEAD included, with 404. What is no HTTP gets what libmicrohttpd says to it,
//           or nothing.
// Network   127.0.0.1 only. Sixteen connections, each closed after its answer, and whatever its
//           client does after two seconds at the latest.
// Threads   One, which takes no signals: nobody else calls libmicrohttpd. Whoever stores figures
//           never waits for a client.
// Errors    Of the constructor: Error(kConfig) where the port cannot be had. None later: a
//           connection that fails is dropped.
#pragma once

#include <memory>

#include "runtime/record/step_figures.h"

namespace millrace {

class MetricsServer {
 public:
  // `port` in [0, 65535]; 0: one that is free. Connections are taken from here on. `figures`
  // outlive it.
  MetricsServer(const NewestFigures& figures, int port);
  // Does not wait for a client.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const noexcept;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace millrace
