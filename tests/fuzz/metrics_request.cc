// What a client of --metrics-port sends, to the server itself: whatever it is, the answer is whole
// or none and in time, it has the figures for nothing but /metrics, and the next client has them,
// too. Of how HTTP is read, which is libmicrohttpd's, only what nobody doubts is asked for.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <regex>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "tools/serve/metrics_server.h"

using namespace millrace;

namespace {

NewestFigures& Figures() {
  static NewestFigures figures;
  return figures;
}

// What the server says until it closes, in pieces of `piece` bytes; nothing where it has reset.
std::string AnswerTo(std::string_view request, size_t piece) {
  static const MetricsServer server(Figures(), 0);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Closed by a reset, no port waits for late packets: there are a few thousand clients a second.
  const linger at_once = {1, 0};
  const timeval most = {30, 0};  // the server gives a client two
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FUZZ_REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  for (; !request.empty(); request.remove_prefix(std::min(piece, request.size())))
    if (::send(fd, request.data(), std::min(piece, request.size()), MSG_NOSIGNAL) < 0) break;
  ::shutdown(fd, SHUT_WR);
  std::string answer;
  char buffer[4096];
  ssize_t got;
  do {  // libFuzzer's clock interrupts a wait that has an end
    got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got > 0) answer.append(buffer, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  FUZZ_REQUIRE(got == 0 || errno == ECONNRESET);
  ::close(fd);
  return got == 0 ? answer : "";
}

bool HasFigures(const std::string& answer) {
  return answer.starts_with("HTTP/1.1 200 OK\r\n") &&
         answer.ends_with("\r\n\r\n" + Figures().Text());
}

bool IsRefusal(const std::string& answer) {
  static const std::regex head("HTTP/1\\.[01] [45][0-9][0-9] [ -~]+\r\n");
  return std::regex_search(answer, head, std::regex_constants::match_continuous);
}

// A request as a scraper writes it. A value without letters is no length and asks for nothing else.
bool IsScrape(std::string_view input) {
  static const std::regex scrape(
      "GET /metrics(\\?[a-z=&]{0,99})? HTTP/1\\.[01]\r\n(X[a-z]{0,20}: [0-9]{0,20}\r\n){0,9}\r\n");
  return input.size() < 4096 && std::regex_match(input.begin(), input.end(), scrape);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte says how the rest is cut up.
  if (size == 0) return 0;
  Figures().Store({.step = 12, .loss = 2.5});
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fuzz::MemoryLimit limit(size);
  const std::string answer = AnswerTo(input, size_t{1} + data[0] * size_t{16});
  const bool has_figures = HasFigures(answer);
  FUZZ_REQUIRE(has_figures || answer.empty() || IsRefusal(answer));
  if (IsScrape(input)) FUZZ_REQUIRE(has_figures);
  // A path may be written with %xx.
  if (input.find("metrics") == input.npos && input.find('%') == input.npos)
    FUZZ_REQUIRE(!has_figures);
  FUZZ_REQUIRE(HasFigures(AnswerTo("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 4096)));
  return 0;
}
