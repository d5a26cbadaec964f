// --metrics-port's server alone: what it answers, its port, its end. With a run behind it:
// tests/cli/metrics_port_test.py.
#include "tools/serve/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

int Connected(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// What the server answers to GET /metrics, status line and headers included.
std::string Scrape(int port) {
  const int fd = Connected(port);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  REQUIRE(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[256];
  for (ssize_t got; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<size_t>(got));
  ::close(fd);
  return answer;
}

std::string BodyOf(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

TEST_CASE("before the first step the text is empty, then it is the newest step's", "[metrics]") {
  NewestFigures figures;
  MetricsServer server(figures, 0);
  REQUIRE(server.port() > 0);
  const std::string empty = Scrape(server.port());
  CHECK(empty.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(BodyOf(empty).empty());
  const StepFigures now = {.step = 12, .loss = 2.5};
  figures.Store(now);
  CHECK(BodyOf(Scrape(server.port())) == PrometheusText(now));
  StepFigures next = now;
  next.step = 13;
  figures.Store(next);
  CHECK(BodyOf(Scrape(server.port())) == PrometheusText(next));
}

TEST_CASE("a port that is taken is refused, and free again afterwards", "[metrics]") {
  const NewestFigures figures;
  int port = 0;
  {
    MetricsServer server(figures, 0);
    port = server.port();
    CHECK_THROWS_AS(MetricsServer(figures, port), Error);
    Scrape(port);
  }
  MetricsServer again(figures, port);
  CHECK(again.port() == port);
}

TEST_CASE("the server ends at once while a client is silent", "[metrics]") {
  const NewestFigures figures;
  std::optional<MetricsServer> server(std::in_place, figures, 0);
  const int silent = Connected(server->port());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // so that it is waited for
  const auto start = std::chrono::steady_clock::now();
  server.reset();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1800));
  ::close(silent);
}

TEST_CASE("clients who say nothing, and more than it takes, are gone after two seconds",
          "[metrics]") {
  NewestFigures figures;
  MetricsServer server(figures, 0);
  const auto start = std::chrono::steady_clock::now();
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connected(server.port()));
  CHECK(Scrape(server.port()).starts_with("HTTP/1.1 200 OK\r\n"));  // its turn comes
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(1900));
  for (const int fd : silent) {
    char byte;
    CHECK(::recv(fd, &byte, 1, 0) == 0);
    ::close(fd);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

}  // namespace
}  // namespace millrace
