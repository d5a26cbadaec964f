// The inside of comm/local: what happens to memory that a peer is reading when the call fails.
#include "comm/local/local_exchange.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kBytes = 32'000'000;  // long enough to copy that an abort can fall into the copy

std::string Outcome(ByteExchange& exchange, const SendPiece& send, const RecvPiece& receive) {
  try {
    exchange.Exchange(CommOp::kHostBroadcast, std::vector<SendPiece>(2, send),
                      std::vector<RecvPiece>(2, receive));
    return "done";
  } catch (const Error& error) {
    return Name(error.code());
  }
}

// Rank 0 sends, rank 1 aborts once its copy has begun. False when the copy was over before the
// abort; then nothing is checked.
bool AbortDuringCopy() {
  const auto group = std::make_shared<LocalGroup>(2, "pair");
  const auto abort_world = [&](const std::string& reason) { group->Abort(reason); };
  const auto sender = MakeLocalExchange(group, 0, std::chrono::seconds(60), abort_world);
  const auto receiver = MakeLocalExchange(group, 1, std::chrono::seconds(60), abort_world);
  std::vector<std::byte> sent(kBytes, std::byte{1}), received(kBytes);
  int copying_at_return = -1;
  auto sending = std::async(std::launch::async, [&] {
    const std::string outcome = Outcome(*sender, {sent.data(), kBytes}, {});
    {
      const std::lock_guard lock(group->mutex);
      copying_at_return = group->copying;
    }
    std::fill(sent.rbegin(), sent.rend(),
              std::byte{2});  // as if freed and used anew; a copy reaches the end last
    return outcome;
  });
  auto receiving = std::async(std::launch::async, [&] {
    return Outcome(*receiver, {}, {received.data(), kBytes});
  });
  for (bool begun = false; !begun; std::this_thread::yield()) {
    const std::lock_guard lock(group->mutex);
    begun = group->copying == 1 || group->ranks[1].copied == 1;
  }
  receiver->Abort("stop");
  const std::string sent_outcome = sending.get(), received_outcome = receiving.get();
  CHECK(copying_at_return == 0);
  CHECK(std::count(received.begin(), received.end(), std::byte{2}) == 0);
  return sent_outcome == "peer_lost" && received_outcome == "peer_lost";
}

TEST_CASE("a rank that fails returns only when no peer reads its memory any more", "[comm]") {
  int attempts = 1;
  while (!AbortDuringCopy() && attempts < 100) ++attempts;
  REQUIRE(attempts < 100);
}

}  // namespace
}  // namespace millrace
