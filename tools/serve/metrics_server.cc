#include "tools/serve/metrics_server.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kConnectionEnds(2);
constexpr unsigned kConnections = 16;
constexpr size_t kHeadBytes = 8192;

struct Connection {
  int fd;
  Clock::time_point ends;
  bool has_all = false;  // that its client will say, for libmicrohttpd to read
};

MHD_Result Send(MHD_Connection* to, unsigned status, const char* type, std::string text) {
  MHD_Response* const response =
      MHD_create_response_from_buffer(text.size(), text.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
  const MHD_Result sent = MHD_queue_response(to, status, response);
  MHD_destroy_response(response);
  return sent;
}

}  // namespace

// libmicrohttpd's time-outs begin anew with each byte that a client sends. So the thread is ours:
// it runs libmicrohttpd where there is something to do, and shuts down who has had its time.
class MetricsServer::Implementation {
 public:
  Implementation(const NewestFigures& figures, int port);
  ~Implementation();

  int port() const noexcept { return port_; }

 private:
  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* path,
                              const char* method, const char* version, const char* body,
                              size_t* body_bytes, void** state);
  static void OnConnection(void* self, MHD_Connection* connection, void** state,
                           MHD_ConnectionNotificationCode code);
  void Run();
  milliseconds UntilNext() const;
  void ShutDone();

  const NewestFigures& figures_;
  int stop_ = -1;  // an eventfd: readable from the destructor on
  MHD_Daemon* daemon_ = nullptr;
  int epoll_ = -1;  // readable where libmicrohttpd has something to do
  int port_ = 0;
  std::map<MHD_Connection*, Connection> connections_;  // that are not shut down yet
  std::thread thread_;
};

MetricsServer::Implementation::Implementation(const NewestFigures& figures, int port)
    : figures_(figures) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  daemon_ = MHD_start_daemon(
      MHD_USE_EPOLL, static_cast<uint16_t>(port), nullptr, nullptr, &OnRequest, this,
      MHD_OPTION_SOCK_ADDR, reinterpret_cast<const sockaddr*>(&address),
      MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this, MHD_OPTION_CONNECTION_LIMIT, kConnections,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeadBytes, MHD_OPTION_END);
  MR_REQUIRE(ErrorCode::kConfig, daemon_ != nullptr,
             "--metrics-port {0}: cannot listen on 127.0.0.1:{0}: {1}; 0 chooses a free port", port,
             std::strerror(errno));
  port_ = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_BIND_PORT)->port;
  epoll_ = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  stop_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_ < 0) {
    const int error = errno;
    MHD_stop_daemon(daemon_);
    throw Error(ErrorCode::kIo, std::string("--metrics-port: no eventfd: ") + std::strerror(error));
  }
  // Signals are for the thread that trains; a new thread inherits the mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsServer::Implementation::~Implementation() {
  ::eventfd_write(stop_, 1);
  thread_.join();
  MHD_stop_daemon(daemon_);
  ::close(stop_);
}

// Called with the head of a request, with each piece of its body, and when all of it has come.
MHD_Result MetricsServer::Implementation::OnRequest(void* self, MHD_Connection* connection,
                                                    const char* path, const char* method,
                                                    const char* version, const char*,
                                                    size_t* body_bytes, void** state) {
  if (*state == nullptr || *body_bytes > 0) {
    *state = self;
    *body_bytes = 0;
    return MHD_YES;
  }
  try {
    const bool asks = std::string_view(method) == "GET" && std::string_view(path) == "/metrics" &&
                      std::string_view(version).starts_with("HTTP/1.");
    const NewestFigures& figures = static_cast<Implementation*>(self)->figures_;
    return asks ? Send(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                       figures.Text())
                : Send(connection, MHD_HTTP_NOT_FOUND, "text/plain; charset=utf-8",
                       "GET /metrics\n");
  } catch (const std::exception&) {  // no memory for an answer: the next client may be luckier
    return MHD_NO;
  }
}

void MetricsServer::Implementation::OnConnection(void* self, MHD_Connection* connection, void**,
                                                 MHD_ConnectionNotificationCode code) {
  auto& connections = static_cast<Implementation*>(self)->connections_;
  if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
    connections.erase(connection);
    return;
  }
  const int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  connections[connection] = {.fd = fd, .ends = Clock::now() + kConnectionEnds};
}

// Until libmicrohttpd or ShutDone has something to do though nothing arrives; -1: for ever.
milliseconds MetricsServer::Implementation::UntilNext() const {
  MHD_UNSIGNED_LONG_LONG own = 0;
  milliseconds next(MHD_get_timeout(daemon_, &own) == MHD_YES ? static_cast<int64_t>(own) : -1);
  for (const auto& [key, connection] : connections_) {
    const auto left = connection.has_all
                          ? milliseconds(0)
                          : std::chrono::ceil<milliseconds>(connection.ends - Clock::now());
    next = next.count() < 0 ? std::max(left, milliseconds(0))
                            : std::clamp(left, milliseconds(0), next);
  }
  return next;
}

// Who has had its time; and who has closed its half before libmicrohttpd ran, and has no answer
// from it: what was said is no request, which libmicrohttpd does not always see. It sees what is
// shut down here, and closes.
void MetricsServer::Implementation::ShutDone() {
  MHD_UNSIGNED_LONG_LONG own = 0;
  const bool is_busy = MHD_get_timeout(daemon_, &own) == MHD_YES && own == 0;
  const auto now = Clock::now();
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto at = next++;
    Connection& connection = at->second;
    if (connection.ends <= now || (connection.has_all && !is_busy)) {
      ::shutdown(connection.fd, SHUT_RDWR);
      connections_.erase(at);
    } else {
      pollfd half_closed = {connection.fd, POLLRDHUP, 0};
      connection.has_all = ::poll(&half_closed, 1, 0) > 0;
    }
  }
}

void MetricsServer::Implementation::Run() {
  while (true) {
    pollfd both[] = {{epoll_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (::poll(both, 2, static_cast<int>(UntilNext().count())) < 0) continue;
    if (both[1].revents != 0) return;
    // Whom the first closes makes room, which the second listens for again. They answer all that
    // has come.
    MHD_run(daemon_);
    MHD_run(daemon_);
    ShutDone();
    // Where the process has no descriptor left, a client that waits is tried again and again.
    if (connections_.empty()) std::this_thread::sleep_for(milliseconds(1));
  }
}

MetricsServer::MetricsServer(const NewestFigures& figures, int port)
    : implementation_(std::make_unique<Implementation>(figures, port)) {}
MetricsServer::~MetricsServer() = default;
int MetricsServer::port() const noexcept { return implementation_->port(); }

}  // namespace millrace
