// What a client of --metrics-port sends: in pieces of any size it is the same request, it ends with
// its first empty line, no more of it is kept than allowed, and only its first line decides.
#include "runtime/record/metrics_request.h"

#include <algorithm>
#include <string>

#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

struct Seen {
  bool whole = false, asks = false;
  size_t taken = 0;  // bytes until it was whole
};

// As the server reads: until the request is whole or the client ends. next(): bytes of the next
// piece.
template <class F>
Seen Read(std::string_view input, F&& next) {
  MetricsRequest request;
  Seen seen;
  while (!seen.whole && seen.taken < input.size()) {
    const std::string_view piece = input.substr(seen.taken, next());
    seen.whole = request.Add(piece);
    seen.taken += piece.size();
    FUZZ_REQUIRE(request.bytes() == std::min(seen.taken, MetricsRequest::kMostBytes));
  }
  seen.asks = request.AsksForMetrics();
  return seen;
}

// By other means than the reader's: the first line, split at its spaces.
bool Asks(std::string_view input) {
  const std::string_view sent = input.substr(0, MetricsRequest::kMostBytes);
  const std::string line(sent.substr(0, std::min(sent.find('\r'), sent.find('\n'))));
  const size_t first = line.find(' ');
  if (first == std::string::npos || line.substr(0, first) != "GET") return false;
  const size_t second = line.find(' ', first + 1);
  if (second == std::string::npos) return false;
  const std::string target = line.substr(first + 1, second - first - 1);
  return target.substr(0, target.find('?')) == "/metrics" &&
         line.compare(second + 1, 7, "HTTP/1.") == 0;
}

// By other means than the reader's: line by line.
bool IsWhole(std::string_view input) {
  const std::string_view sent = input.substr(0, MetricsRequest::kMostBytes);
  if (sent.size() == MetricsRequest::kMostBytes) return true;
  for (size_t begin = 0, end; (end = sent.find('\n', begin)) != std::string_view::npos;
       begin = end + 1) {
    const std::string_view line = sent.substr(begin, end - begin);
    if (begin > 0 && (line.empty() || line == "\r")) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte says how the rest is cut up.
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fuzz::MemoryLimit limit(size);
  uint32_t state = data[0];
  const Seen whole = Read(input, [&] { return input.size(); });
  const Seen bytewise = Read(input, [] { return size_t{1}; });
  const Seen pieces = Read(input, [&] {
    state = state * 1664525 + 1013904223;
    return size_t{1} + (state >> 16) % 40;
  });
  FUZZ_REQUIRE(whole.whole == bytewise.whole && whole.whole == pieces.whole);
  FUZZ_REQUIRE(whole.whole == IsWhole(input));
  FUZZ_REQUIRE(bytewise.taken <= pieces.taken && pieces.taken <= whole.taken);
  FUZZ_REQUIRE(whole.asks == bytewise.asks && whole.asks == pieces.asks);
  FUZZ_REQUIRE(whole.asks == Asks(input));
  const std::string more = std::string(input) + "\r\nGET /other HTTP/1.1\r\n\r\n";
  if (input.find_first_of("\r\n") != std::string_view::npos)
    FUZZ_REQUIRE(Read(more, [&] { return more.size(); }).asks == whole.asks);
  return 0;
}
