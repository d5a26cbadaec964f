#include "tools/serve/http_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "tools/serve/exchange.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;
using serve::Exchange;

constexpr unsigned kThreads = 4;
constexpr std::chrono::milliseconds kWatch(100);
constexpr std::chrono::seconds kFlush(2);

union Address {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

Address ParseAddress(const std::string& text, int port) {
  Address address = {};
  if (inet_pton(AF_INET, text.c_str(), &address.v4.sin_addr) == 1) {
    address.v4.sin_family = AF_INET;
    address.v4.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  const bool is_v6 = inet_pton(AF_INET6, text.c_str(), &address.v6.sin6_addr) == 1;
  MR_REQUIRE(ErrorCode::kConfig, is_v6,
             "--host is {}; it must be an IPv4 or IPv6 address in digits, as 127.0.0.1", text);
  address.v6.sin6_family = AF_INET6;
  address.v6.sin6_port = htons(static_cast<uint16_t>(port));
  return address;
}

// One for each connection, and some for files and libmicrohttpd's own.
void RequireDescriptors(int64_t connections) {
  constexpr int64_t kOthers = 128;
  const auto needed = static_cast<rlim_t>(connections + kOthers);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  MR_REQUIRE(ErrorCode::kConfig, limit.rlim_cur >= needed,
             "--connections {} takes {} open files, and this process may have {} (ulimit -n)",
             connections, needed, limit.rlim_cur);
}

}  // namespace

bool IsLoopback(const std::string& text) {
  const Address address = ParseAddress(text, 0);
  if (address.any.sa_family == AF_INET) return ntohl(address.v4.sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&address.v6.sin6_addr);
}

// What libmicrohttpd calls, and a thread that looks after connections: a suspended one is not
// polled by libmicrohttpd, and its own time-outs know nothing of a request that trickles in.
class HttpServer::Implementation {
 public:
  Implementation(ServeApi& api, const std::string& address, int port, const HttpLimits& limits);
  ~Implementation();

  int port() const { return port_; }
  int64_t connections() const;

 private:
  struct Connection {
    int fd = -1;
    Clock::time_point since;  // that it waits for a request
    bool is_receiving = true;
    std::shared_ptr<Exchange> exchange;  // its request
    bool was_left = false;               // by its client, when it was last looked at
    bool is_shut = false;
  };

  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url,
                              const char* method, const char* version, const char* upload,
                              size_t* upload_size, void** state);
  static void OnCompleted(void* self, MHD_Connection* connection, void** state,
                          MHD_RequestTerminationCode code);
  static void OnConnection(void* self, MHD_Connection* connection, void** state,
                           MHD_ConnectionNotificationCode code);
  void Watch();
  std::vector<std::shared_ptr<Exchange>> Left();
  bool IsLate(const Connection& connection, Clock::time_point now) const;

  ServeApi& api_;
  const HttpLimits limits_;
  serve::BodyBudget budget_;
  int port_ = 0;
  MHD_Daemon* daemon_ = nullptr;
  mutable std::mutex mutex_;
  std::map<MHD_Connection*, Connection> connections_;  // under mutex_
  bool over_ = false;                                  // under mutex_
  std::condition_variable changed_;
  std::thread watcher_;
};

HttpServer::Implementation::Implementation(ServeApi& api, const std::string& address, int port,
                                           const HttpLimits& limits)
    : api_(api), limits_(limits), budget_(limits.all_bodies) {
  RequireDescriptors(limits.connections);
  const Address bind = ParseAddress(address, port);
  const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                         (bind.any.sa_family == AF_INET6 ? unsigned{MHD_USE_IPv6} : 0u);
  const auto connection_limit = static_cast<unsigned>(limits.connections);
  const auto memory = static_cast<size_t>(limits.header_bytes);
  const auto idle = static_cast<unsigned>(limits.idle_s);
  const MHD_OptionItem options[] = {
      {MHD_OPTION_NOTIFY_COMPLETED, reinterpret_cast<intptr_t>(&OnCompleted), this},
      {MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<intptr_t>(&OnConnection), this},
      {MHD_OPTION_THREAD_POOL_SIZE, kThreads, nullptr},
      {MHD_OPTION_CONNECTION_LIMIT, connection_limit, nullptr},
      {MHD_OPTION_CONNECTION_MEMORY_LIMIT, static_cast<intptr_t>(memory), nullptr},
      {MHD_OPTION_CONNECTION_TIMEOUT, idle, nullptr},
      {MHD_OPTION_END, 0, nullptr}};
  daemon_ =
      MHD_start_daemon(flags, static_cast<uint16_t>(port), nullptr, nullptr, &OnRequest, this,
                       MHD_OPTION_SOCK_ADDR, &bind.any, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
  MR_REQUIRE(ErrorCode::kConfig, daemon_ != nullptr, "cannot listen at {} port {}: {}", address,
             port, std::strerror(errno));
  const MHD_DaemonInfo* const info = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_BIND_PORT);
  port_ = info->port;
  watcher_ = std::thread([this] { Watch(); });
}

HttpServer::Implementation::~Implementation() {
  {
    std::unique_lock lock(mutex_);
    const auto is_done = [&] {
      for (const auto& [key, connection] : connections_)
        if (connection.exchange) return false;
      return true;
    };
    changed_.wait_for(lock, kFlush, is_done);
    over_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  MHD_stop_daemon(daemon_);
}

int64_t HttpServer::Implementation::connections() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(connections_);
}

MHD_Result HttpServer::Implementation::OnRequest(void* self, MHD_Connection* connection,
                                                 const char* url, const char* method, const char*,
                                                 const char* upload, size_t* upload_size,
                                                 void** state) {
  auto& server = *static_cast<Implementation*>(self);
  try {
    auto* const exchange = static_cast<Exchange*>(*state);
    if (exchange == nullptr) {
      auto made = std::make_shared<Exchange>(server.api_, connection, server.budget_,
                                             server.limits_.body_bytes);
      *state = made.get();
      {
        const std::lock_guard lock(server.mutex_);
        Connection& of = server.connections_[connection];
        of.exchange = made;
        of.since = Clock::now();
      }
      return made->Begin(method, url);
    }
    if (*upload_size > 0) return exchange->Receive(upload, upload_size);
    {
      const std::lock_guard lock(server.mutex_);
      server.connections_[connection].is_receiving = false;
    }
    return exchange->Answer();
  } catch (const std::exception&) {  // no memory
    return MHD_NO;
  }
}

void HttpServer::Implementation::OnCompleted(void* self, MHD_Connection* connection, void** state,
                                             MHD_RequestTerminationCode) {
  auto& server = *static_cast<Implementation*>(self);
  if (*state == nullptr) return;
  *state = nullptr;
  std::shared_ptr<Exchange> exchange;
  {
    const std::lock_guard lock(server.mutex_);
    Connection& of = server.connections_[connection];
    exchange.swap(of.exchange);
    of.is_receiving = true;
    of.since = Clock::now();
  }
  server.changed_.notify_all();
  if (exchange) exchange->End();
}

void HttpServer::Implementation::OnConnection(void* self, MHD_Connection* connection, void**,
                                              MHD_ConnectionNotificationCode code) {
  auto& server = *static_cast<Implementation*>(self);
  const std::lock_guard lock(server.mutex_);
  if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
    server.connections_.erase(connection);
    return;
  }
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  server.connections_[connection] = {
      .fd = info->connect_fd, .since = Clock::now(), .exchange = nullptr};
}

// The requests of clients that have closed. Who is too slow with a request, or has left amid one,
// is shut down, which libmicrohttpd sees: an end that comes with the last bytes it does not always
// see by itself. What came before the end it may not have read yet, so that is looked at twice.
std::vector<std::shared_ptr<Exchange>> HttpServer::Implementation::Left() {
  std::vector<pollfd> descriptors;
  std::vector<Connection*> watched;
  for (auto& [key, connection] : connections_) {
    if (connection.is_shut) continue;
    descriptors.push_back({connection.fd, POLLRDHUP, 0});
    watched.push_back(&connection);
  }
  poll(descriptors.data(), descriptors.size(), 0);
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Exchange>> left;
  for (size_t i = 0; i < descriptors.size(); ++i) {
    Connection& connection = *watched[i];
    const bool has_left = (descriptors[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    const bool had_left = std::exchange(connection.was_left, has_left);
    if (connection.is_receiving) {
      connection.is_shut = (has_left && had_left) || IsLate(connection, now);
      if (connection.is_shut) shutdown(connection.fd, SHUT_RDWR);
    } else if (has_left) {
      connection.is_shut = true;
      if (connection.exchange) left.push_back(connection.exchange);
    }
  }
  return left;
}

bool HttpServer::Implementation::IsLate(const Connection& connection, Clock::time_point now) const {
  const double waited = std::chrono::duration<double>(now - connection.since).count();
  return waited > limits_.request_s && (connection.exchange || waited > limits_.idle_s);
}

void HttpServer::Implementation::Watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    const std::vector<std::shared_ptr<Exchange>> left = Left();
    lock.unlock();
    for (const std::shared_ptr<Exchange>& exchange : left) exchange->Leave();
    lock.lock();
    changed_.wait_for(lock, kWatch, [&] { return over_; });
  }
}

HttpServer::HttpServer(ServeApi& api, const std::string& address, int port,
                       const HttpLimits& limits)
    : implementation_(std::make_unique<Implementation>(api, address, port, limits)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return implementation_->port(); }
int64_t HttpServer::connections() const { return implementation_->connections(); }

}  // namespace millrace
