// Limits of the transport, with small ones and clients that are slow or send too much. What is said
// is //tests/runtime/serve's, and the program's clients are //tests/cli's.
#include "tools/serve/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "tests/runtime/infer/checking_token_model.h"

namespace millrace {
namespace {

constexpr int kPatienceS = 60;

TokenModelLimits Limits() {
  TokenModelLimits limits;
  limits.slots = 2;
  limits.pages = 40;
  limits.page_tokens = limits.max_chunk = limits.max_scored = 8;
  limits.max_length = 64;
  limits.vocab = 256;
  return limits;
}

struct Served {
  explicit Served(const HttpLimits& limits)
      : model(Limits()),
        engine(model, 1, nullptr, {}),
        text(TextKind::kBytes, nullptr, std::nullopt),
        api(engine, text, {}),
        thread([this] { engine.Run(); }),
        server(std::make_unique<HttpServer>(api, "127.0.0.1", 0, limits)) {}
  ~Served() {
    engine.Stop();
    thread.join();
  }

  test::CheckingTokenModel model;
  ServeEngine engine;
  const ServedText text;
  ServeApi api;
  std::thread thread;
  std::unique_ptr<HttpServer> server;
};

class Client {
 public:
  explicit Client(const Served& served) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience = {.tv_sec = kPatienceS, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(served.server->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~Client() { close(fd_); }

  bool Send(std::string_view bytes) {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  }
  void Post(std::string_view body, size_t length) {
    REQUIRE(Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                 std::to_string(length) + "\r\n\r\n"));
    REQUIRE(Send(body));
  }
  // Whether there is something to receive.
  bool Answered() {
    char byte;
    return recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }
  // What comes next; "" once the server has closed, nothing after kPatienceS.
  std::optional<std::string> Receive() {
    char bytes[4096];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count < 0 && errno != ECONNRESET) return std::nullopt;
    return std::string(bytes, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }

 private:
  const int fd_;
};

constexpr std::string_view kBody = R"({"prompt":"a","max_tokens":3})";

TEST_CASE("who is too slow with a request is cut off, whatever trickles in", "[serve][http]") {
  Served served({.request_s = 0.3, .idle_s = 1000});
  Client nothing(served), half(served), trickle(served);
  half.Post(kBody.substr(0, 5), kBody.size());
  trickle.Post("{", 1 << 20);
  bool is_open = true;
  for (int i = 0; i < kPatienceS * 50 && is_open; ++i) {
    is_open = trickle.Send(" ");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK_FALSE(is_open);
  CHECK(half.Receive() == "");
  // One that waits between two requests is not late.
  nothing.Post(kBody, kBody.size());
  CHECK_THAT(nothing.Receive().value_or(""), Catch::StartsWith("HTTP/1.1 200"));
}

TEST_CASE("an idle connection is closed", "[serve][http]") {
  Served served({.request_s = 0.1, .idle_s = 1});
  Client client(served);
  client.Post(kBody, kBody.size());
  CHECK_THAT(client.Receive().value_or(""), Catch::StartsWith("HTTP/1.1 200"));
  std::optional<std::string> next = client.Receive();
  if (next != "") next = client.Receive();  // that was the answer's rest
  CHECK(next == "");
}

// libmicrohttpd reads the last bytes and need not hear of the end that came with them: such
// connections stayed for request_s, each with its memory.
TEST_CASE("a client that leaves amid its request takes its connection with it", "[serve][http]") {
  constexpr int kClients = 40;
  Served served({.request_s = 1e6, .idle_s = 1e6});
  for (int i = 0; i < kClients; ++i) {
    Client client(served);
    REQUIRE(client.Send("POST /v1/completions HT"));
    if (i % 4 == 0) continue;
    REQUIRE(client.Send("TP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n"));
    if (i % 4 > 1) REQUIRE(client.Send(kBody.substr(0, 5)));
    if (i % 4 > 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (int tries = 0; tries < 500 && served.server->connections() > 0; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(served.server->connections() == 0);
  // Others are answered as before.
  Client whole(served);
  whole.Post(kBody, kBody.size());
  CHECK_THAT(whole.Receive().value_or(""), Catch::StartsWith("HTTP/1.1 200"));
}

TEST_CASE("bodies have a limit, each and all together", "[serve][http]") {
  Served served({.body_bytes = 1000, .all_bodies = 1500});
  Client large(served);
  large.Post("", 1001);
  CHECK_THAT(large.Receive().value_or(""), Catch::StartsWith("HTTP/1.1 413"));
  const std::string blanks(990, ' ');
  Client second(served);
  std::optional<Client> first;
  // The first one's bytes count once they have come, and that cannot be seen from here but so. On a
  // busy machine the second one's may have come before, and the first one is told 503.
  std::string status;
  for (int tries = 0; tries < kPatienceS * 50 && !status.starts_with("HTTP/1.1 503"); ++tries) {
    if (!first || first->Answered()) first.emplace(served).Post(blanks, 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    second.Post(blanks + "0123456789", 1000);
    status = second.Receive().value_or("");
  }
  CHECK_THAT(status, Catch::StartsWith("HTTP/1.1 503"));
  REQUIRE(first->Send("0123456789"));
  CHECK_THAT(first->Receive().value_or(""), Catch::StartsWith("HTTP/1.1 400"));
  second.Post(blanks + "0123456789", 1000);  // there is room again
  CHECK_THAT(second.Receive().value_or(""), Catch::StartsWith("HTTP/1.1 400"));
}

TEST_CASE("only what is an address in digits is listened at, and only loopback is this host",
          "[serve][http]") {
  CHECK(IsLoopback("127.0.0.1"));
  CHECK(IsLoopback("127.255.0.9"));
  CHECK(IsLoopback("::1"));
  for (const char* other : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "::ffff:127.0.0.1"})
    CHECK_FALSE(IsLoopback(other));
  CHECK_THROWS_WITH(IsLoopback("localhost"), Catch::Contains("in digits"));
  Served served({});
  CHECK_THROWS_WITH(HttpServer(served.api, "127.0.0.1", served.server->port(), {}),
                    Catch::Contains("Address already in use"));
}

}  // namespace
}  // namespace millrace
