// The inside of comm/local: what it counts, and what happens to memory that a peer is reading when
// the call fails.
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

// Of rank `from` to rank `to` in round `round`: different for each pair, now and then nothing.
int64_t PieceBytes(int round, int from, int to) { return (from * 3 + to + round * round) % 5 * 60; }

TEST_CASE("what has moved is counted in both directions, and what stays is not", "[comm]") {
  constexpr int kWorld = 3, kRounds = 4;
  const auto group = std::make_shared<LocalGroup>(kWorld, "three");
  const auto abort_world = [&](const std::string& reason) { group->Abort(reason); };
  std::vector<std::future<std::vector<MovedBytes>>> ranks;
  for (int rank = 0; rank < kWorld; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto exchange = MakeLocalExchange(group, rank, std::chrono::seconds(60), abort_world);
      std::vector<std::byte> sent(300), received(300 * kWorld);
      std::vector<MovedBytes> moved;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<SendPiece> sends;
        std::vector<RecvPiece> recvs;
        for (int p = 0; p < kWorld; ++p) {
          sends.push_back({sent.data(), PieceBytes(round, rank, p)});
          recvs.push_back({received.data() + 300 * p, PieceBytes(round, p, rank)});
        }
        exchange->Exchange(CommOp::kAllGather, sends, recvs);
        moved.push_back(exchange->moved());
      }
      return moved;
    }));
  for (int rank = 0; rank < kWorld; ++rank) {
    const std::vector<MovedBytes> moved = ranks[rank].get();
    MovedBytes expected;
    for (int round = 0; round < kRounds; ++round) {
      for (int p = 0; p < kWorld; ++p) {
        if (p == rank) continue;
        expected.sent += PieceBytes(round, rank, p);
        expected.received += PieceBytes(round, p, rank);
      }
      CAPTURE(rank, round);
      CHECK(moved[round].sent == expected.sent);
      CHECK(moved[round].received == expected.received);
    }
    CHECK(expected.sent != expected.received);
  }
}

// A count of what was asked for would have these bytes.
TEST_CASE("what was offered and never taken has not moved", "[comm]") {
  const auto group = std::make_shared<LocalGroup>(2, "pair");
  const auto abort_world = [&](const std::string& reason) { group->Abort(reason); };
  const auto sender = MakeLocalExchange(group, 0, std::chrono::seconds(60), abort_world);
  const auto receiver = MakeLocalExchange(group, 1, std::chrono::seconds(60), abort_world);
  std::vector<std::byte> sent(100), received(50);
  auto sending = std::async(std::launch::async, [&] {
    return Outcome(*sender, {sent.data(), 100}, {});
  });
  CHECK(Outcome(*receiver, {}, {received.data(), 50}) == Name(ErrorCode::kComm));
  receiver->Abort("stop");
  CHECK(sending.get() == Name(ErrorCode::kPeerLost));
  CHECK(sender->moved() == MovedBytes{});
  CHECK(receiver->moved() == MovedBytes{});
}

}  // namespace
}  // namespace millrace
