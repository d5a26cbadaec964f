// The figures of the newest step for Prometheus, over HTTP, while a run goes on. Rank 0 has one.
//
// Format    Text exposition format 0.0.4. GET /metrics (a query is ignored) is answered with 200,
//           every other request with 404. Until Store was called the text is empty: no figure is
//           made up.
// Network   127.0.0.1 only. One connection at a time, closed after its answer, and whatever its
//           client does after two seconds at the latest.
// Threads   One, which takes no signals. Store copies a small struct under a mutex that is never
//           held while a client is waited for.
// Errors    Of the constructor: Error(kConfig) where the port cannot be had. None later: a
//           connection that fails is dropped.
// Source    prometheus.io/docs/instrumenting/exposition_formats, "Text-based format".
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/record/eval_scores.h"
#include "runtime/record/policy_figures.h"
#include "runtime/record/router_figures.h"
#include "runtime/record/source_figures.h"

namespace millrace {

struct StepFigures {
  int64_t step = 0;  // 1-based: steps done
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0;  // all ranks
  double step_seconds = 0;
  int64_t device_bytes = 0;  // most in use so far: rank 0's device, or its process's resident size
  int64_t skipped = 0;       // updates skipped so far
  int64_t tokens = 0;        // seen so far, all ranks
  int64_t roll_backs = 0;    // that guards have made so far
  std::vector<RouterFigures> routers = {};  // of each block with experts
  // With such blocks: pairs that steps had no room for, of this call so far, and batches that wait
  // to run again.
  int64_t dropped_pairs = 0, waiting_batches = 0;
  std::vector<SourceFigures> sources = {};   // of each of data.sources
  std::optional<PolicyFigures> policy = {};  // of a policy gradient
  std::vector<EvalScores> scores = {};       // the newest of eval.tasks

  // Checkpoints of this call.
  struct Saves {
    int64_t published = 0, failed = 0;
    int64_t step = 0;          // of the newest
    double stall_seconds = 0;  // that training waited for one last
    double seconds = 0;        // from the beginning of the newest to its publication
  };
  std::optional<Saves> saves = {};  // once there is something to say
};

// NaN and infinities as Prometheus writes them; other values read back as the same double.
std::string PrometheusText(const StepFigures& figures);

class MetricsServer {
 public:
  // `port` in [0, 65535]; 0: the kernel chooses one that is free. Connections are taken from here
  // on.
  explicit MetricsServer(int port);
  // Does not wait for a client.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const noexcept { return port_; }
  void Store(const StepFigures& figures);

 private:
  class Descriptor {
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const noexcept { return fd_; }

   private:
    const int fd_;
  };
  class Connection;

  std::string Text();
  void Run();

  const Descriptor listener_;
  const Descriptor stop_;  // an eventfd: readable from the destructor on
  int port_ = 0;
  std::mutex mutex_;
  std::optional<StepFigures> figures_;  // under mutex_
  std::thread thread_;
};

}  // namespace millrace
