#include "runtime/record/metrics_server.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/record/metrics_request.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectionEnds(2);
constexpr std::chrono::milliseconds kAcceptAgain(100);  // when the process has no descriptor left
constexpr int kBacklog = 16;

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Number(int64_t value) { return std::to_string(value); }

template <typename T>
std::string Metric(std::string_view name, std::string_view type, std::string_view help, T value) {
  return fmt::format("# HELP millrace_{0} {1}\n# TYPE millrace_{0} {2}\nmillrace_{0} {3}\n", name,
                     help, type, Number(value));
}

// A label's value: a source is named after a path, which may hold anything.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return quoted + '"';
}

// A sample for each block or source, under one name.
template <typename Figures, typename T>
std::string PerName(std::string_view name, std::string_view type, std::string_view help,
                    std::string_view label, const std::vector<Figures>& all,
                    std::string Figures::*named, T Figures::*value) {
  std::string text =
      fmt::format("# HELP millrace_{0} {1}\n# TYPE millrace_{0} {2}\n", name, help, type);
  for (const Figures& one : all)
    text += fmt::format("millrace_{}{{{}={}}} {}\n", name, label, Quoted(one.*named),
                        Number(one.*value));
  return text;
}

// Nothing about a model without experts.
std::string Routers(const StepFigures& figures) {
  if (figures.routers.empty()) return "";
  return PerName("max_load", "gauge", "Largest load of an expert over the mean load.", "block",
                 figures.routers, &RouterFigures::block, &RouterFigures::max_load) +
         PerName("router_entropy", "gauge",
                 "Entropy of the mean probabilities over experts, in nats.", "block",
                 figures.routers, &RouterFigures::block, &RouterFigures::entropy) +
         Metric("dropped_pairs_total", "counter",
                "Pairs of token and expert that skipped steps had no room for.",
                figures.dropped_pairs) +
         Metric("waiting_batches", "gauge", "Batches of such steps that have not run again yet.",
                figures.waiting_batches);
}

// Nothing about a run that blends no sources.
std::string Sources(const StepFigures& figures) {
  if (figures.sources.empty()) return "";
  return PerName("source_samples_total", "counter", "Sequences drawn from a source, all ranks.",
                 "source", figures.sources, &SourceFigures::name, &SourceFigures::samples) +
         PerName("source_epochs", "gauge", "Times that a source has been gone through.", "source",
                 figures.sources, &SourceFigures::name, &SourceFigures::epochs);
}

// Nothing about a run that has no such loss.
std::string Policy(const StepFigures& figures) {
  if (!figures.policy) return "";
  return Metric("clip_fraction", "gauge", "Targets whose ratio was clipped, of those that count.",
                figures.policy->clip_fraction) +
         Metric("ratio", "gauge", "Mean ratio of probabilities, new to old.",
                figures.policy->ratio) +
         Metric("kl", "gauge",
                "Mean divergence from the reference, else from the old policy, in nats.",
                figures.policy->kl);
}

// Nothing before the first.
std::string Scores(const StepFigures& figures) {
  if (figures.scores.empty()) return "";
  std::string text =
      "# HELP millrace_score Newest score in an evaluation task.\n# TYPE millrace_score gauge\n";
  for (const EvalScores& scores : figures.scores)
    for (const auto& [name, value] : scores.values)
      text += fmt::format("millrace_score{{task={},metric={}}} {}\n", Quoted(scores.task),
                          Quoted(name), Number(value));
  return text;
}

int Listen(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  MR_REQUIRE(ErrorCode::kConfig, fd >= 0, "--metrics-port {}: no socket: {}", port,
             std::strerror(errno));
  // Connections of a run that has just ended linger in TIME_WAIT; a port that is
  // listened on stays refused.
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(fd, kBacklog) == 0)
    return fd;
  const int error = errno;
  ::close(fd);
  throw Error(
      ErrorCode::kConfig,
      fmt::format("--metrics-port {0}: cannot listen on 127.0.0.1:{0}: {1}; 0 chooses a free port",
                  port, std::strerror(error)));
}

int PortOf(int fd) {
  sockaddr_in address = {};
  socklen_t size = sizeof address;
  MR_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname: {}",
           std::strerror(errno));
  return ntohs(address.sin_port);
}

int StopEvent() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  MR_REQUIRE(ErrorCode::kIo, fd >= 0, "--metrics-port: no eventfd: {}", std::strerror(errno));
  return fd;
}

std::string Response(std::string_view status, std::string_view content_type,
                     std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, content_type, body.size(), body);
}

}  // namespace

std::string PrometheusText(const StepFigures& f) {
  std::string saves;
  if (f.saves)
    saves =
        Metric("saves_total", "counter", "Checkpoints published.", f.saves->published) +
        Metric("failed_saves_total", "counter", "Checkpoints that could not be written.",
               f.saves->failed) +
        Metric("saved_step", "gauge", "Step of the newest checkpoint.", f.saves->step) +
        Metric("save_stall_seconds", "gauge", "Time that training last waited for a checkpoint.",
               f.saves->stall_seconds) +
        Metric("save_seconds", "gauge",
               "Time from the newest checkpoint's beginning to its publication.", f.saves->seconds);
  return Metric("step", "gauge", "Training steps done.", f.step) +
         Metric("loss", "gauge", "Training loss of the step.", f.loss) +
         Metric("grad_norm", "gauge", "Norm of the gradient before clipping.", f.grad_norm) +
         Metric("lr", "gauge", "Learning rate of the step.", f.lr) +
         Metric("tokens_per_second", "gauge", "Tokens per second of the step, all ranks.",
                f.tokens_per_s) +
         Metric("step_seconds", "gauge", "Duration of the step.", f.step_seconds) +
         Metric("device_bytes", "gauge",
                "Most memory in use so far: the device of rank 0; without one its resident size.",
                f.device_bytes) +
         Metric("skipped_steps_total", "counter",
                "Updates skipped: a value was not finite, or a guard did not trust the loss.",
                f.skipped) +
         Metric("tokens_total", "counter", "Tokens trained on, all ranks.", f.tokens) +
         Metric("roll_backs_total", "counter", "Roll-backs to a checkpoint that guards have made.",
                f.roll_backs) +
         Routers(f) + Sources(f) + Policy(f) + Scores(f) + saves;
}

MetricsServer::Descriptor::~Descriptor() { ::close(fd_); }

// One client, from its request to the end, in one deadline: timeouts of single calls would let a
// client that sends a byte at a time stay.
class MetricsServer::Connection {
 public:
  Connection(int fd, int stop) : fd_(fd), stop_(stop), ends_(Clock::now() + kConnectionEnds) {}

  // False: the client said nothing whole.
  bool ReadRequest(MetricsRequest* request) {
    char buffer[1024];
    while (true) {
      const ssize_t got = Receive(buffer, sizeof buffer);
      if (got <= 0) return false;
      if (request->Add({buffer, static_cast<size_t>(got)})) return true;
    }
  }

  void Write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0)
        text.remove_prefix(static_cast<size_t>(sent));
      else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (!Wait(POLLOUT)) return;
      } else if (errno != EINTR) {
        return;
      }
    }
  }

  // Closing with something unread would reset the connection, and the answer might be lost with it.
  void Finish() {
    ::shutdown(fd_.get(), SHUT_WR);
    char buffer[1024];
    while (Receive(buffer, sizeof buffer) > 0) {
    }
  }

 private:
  // Bytes; 0: the client has ended; -1: failed, too late, or stopped.
  ssize_t Receive(char* to, size_t most) {
    while (Wait(POLLIN)) {
      const ssize_t got = ::recv(fd_.get(), to, most, MSG_DONTWAIT);
      if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return got;
    }
    return -1;
  }

  bool Wait(short events) {
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(ends_ - Clock::now()).count();
      if (left <= 0) return false;
      pollfd both[] = {{fd_.get(), events, 0}, {stop_, POLLIN, 0}};
      const int ready = ::poll(both, 2, static_cast<int>(left));
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0 && both[1].revents == 0;
    }
  }

  const Descriptor fd_;
  const int stop_;
  const Clock::time_point ends_;
};

MetricsServer::MetricsServer(int port)
    : listener_(Listen(port)), stop_(StopEvent()), port_(PortOf(listener_.get())) {
  // Signals are for the thread that trains; a new thread inherits the mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsServer::~MetricsServer() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void MetricsServer::Store(const StepFigures& figures) {
  const std::lock_guard lock(mutex_);
  std::vector<EvalScores> newest =
      figures.scores.empty() && figures_ ? figures_->scores : figures.scores;
  figures_ = figures;
  figures_->scores = std::move(newest);
}

std::string MetricsServer::Text() {
  std::optional<StepFigures> figures;
  {
    const std::lock_guard lock(mutex_);
    figures = figures_;
  }
  return figures ? PrometheusText(*figures) : "";
}

void MetricsServer::Run() {
  while (true) {
    pollfd both[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(both, 2, -1) < 0) continue;
    if (both[1].revents != 0) return;
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      ::poll(&both[1], 1, static_cast<int>(kAcceptAgain.count()));
      continue;
    }
    Connection connection(fd, stop_.get());
    try {
      MetricsRequest request;
      if (!connection.ReadRequest(&request)) continue;
      connection.Write(
          request.AsksForMetrics()
              ? Response("200 OK", "text/plain; version=0.0.4; charset=utf-8", Text())
              : Response("404 Not Found", "text/plain; charset=utf-8", "GET /metrics\n"));
      connection.Finish();
    } catch (const std::exception&) {  // no memory for an answer: the next client may be luckier
    }
  }
}

}  // namespace millrace
