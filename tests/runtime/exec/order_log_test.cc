// Logs of collectives: what makes two of them differ, and what is said of ranks that part.
#include "runtime/exec/agreement/order_log.h"

#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using Kind = OrderLog::Kind;

// `calls` gathers of units 0, 1, 2, 0, ... on communicator 0 of two, in steps of three, with
// `other` in place of call `at` (from 0).
OrderLog LogOf(int64_t calls, int64_t at = -1, const std::function<void(OrderLog&)>& other = {}) {
  OrderLog log(2);
  for (int64_t i = 0; i < calls; ++i) {
    log.BeginRun({0, false, i / 3});
    if (i == at)
      other(log);
    else
      log.Issued(0, Kind::kAllGather, static_cast<int32_t>(i % 3), 64 + i % 3, i % 3);
  }
  return log;
}

std::string Described(const std::vector<OrderLog>& ranks) {
  std::vector<std::string> histories;
  std::vector<int> group;
  for (const OrderLog& log : ranks) {
    group.push_back(static_cast<int>(histories.size()));
    histories.push_back(log.History(0));
  }
  return DescribeOrder("shard gather", group, histories, {"embed", "h.0", "head"});
}

TEST_CASE("whatever a call is known by makes another digest", "[order]") {
  const std::string same = LogOf(7).Digests();
  CHECK(LogOf(7).Digests() == same);
  CHECK(LogOf(6).Digests() != same);
  const std::vector<std::function<void(OrderLog&)>> others = {
      [](OrderLog& log) { log.Issued(0, Kind::kReduceScatter, 1, 65, 1); },
      [](OrderLog& log) { log.Issued(1, Kind::kAllGather, 1, 65, 1); },
      [](OrderLog& log) { log.Issued(0, Kind::kAllGather, 2, 65, 1); },
      [](OrderLog& log) { log.Issued(0, Kind::kAllGather, 1, 66, 1); },
      [](OrderLog& log) { log.Issued(0, Kind::kAllGather, 1, 65, 2); },
      [](OrderLog& log) {
        log.BeginRun({0, false, 2});
        log.Issued(0, Kind::kAllGather, 1, 65, 1);
      },
      [](OrderLog&) {},
  };
  for (const auto& other : others) CHECK(LogOf(7, 4, other).Digests() != same);
  CHECK(LogOf(7, 4, [](OrderLog& log) { log.Issued(0, Kind::kAllGather, 1, 65, 1); }).Digests() ==
        same);
}

TEST_CASE("the rank that is alone is named, with its first call that differs", "[order]") {
  const auto other = [](OrderLog& log) { log.Issued(0, Kind::kAllReduce, -1, 8, 1); };
  const std::string words =
      " has issued other collectives than rank {} on the communicator 'shard gather': call 5 is "
      "all_reduce of no unit (8 bytes, op 1 of step 2), and all_gather of unit h.0 (65 bytes, op 1 "
      "of step 2) on rank {}";
  const auto than = [&](const std::string& rank) {
    std::string text = words;
    for (size_t at; (at = text.find("{}")) != std::string::npos;) text.replace(at, 2, rank);
    return text;
  };
  CHECK(Described({LogOf(9), LogOf(9), LogOf(9, 4, other)}) == "rank 2" + than("0"));
  CHECK(Described({LogOf(9, 4, other), LogOf(9), LogOf(9)}) == "rank 0" + than("1"));
  CHECK(Described({LogOf(9), LogOf(9, 4, other)}) == "rank 1" + than("0"));
}

TEST_CASE("a rank that has issued fewer, or nothing", "[order]") {
  CHECK(Described({LogOf(4), LogOf(3)}) ==
        "rank 1 has issued other collectives than rank 0 on the communicator 'shard gather': call "
        "4 is nothing, and all_gather of "
        "unit embed (64 bytes, op 0 of step 2) on rank 0");
  CHECK(Described({LogOf(1), LogOf(0)}) ==
        "rank 1 has issued other collectives than rank 0 on the communicator 'shard gather': call "
        "1 is nothing, and all_gather of "
        "unit embed (64 bytes, op 0 of step 1) on rank 0");
}

TEST_CASE("of long logs the newest calls are kept; what is older can only be told to be so",
          "[order]") {
  const int64_t calls = 3 * OrderLog::kKept + 5;
  const auto other = [](OrderLog& log) { log.Issued(0, Kind::kAllGather, 2, 1, 1); };
  const auto at = [&](int64_t back) {
    return Described({LogOf(calls), LogOf(calls, calls - back, other)});
  };
  CHECK_THAT(at(1), Catch::Contains("call " + std::to_string(calls) +
                                    " is all_gather of unit head (1 bytes"));
  CHECK_THAT(at(OrderLog::kKept),
             Catch::Contains("call " + std::to_string(calls - OrderLog::kKept + 1) +
                             " is all_gather of unit head"));
  CHECK_THAT(at(OrderLog::kKept + 1), Catch::Contains("more than 4095 calls ago"));
}

TEST_CASE("lists are compared within the groups of their communicator", "[order]") {
  LocalWorld world(4);
  std::vector<std::optional<OrderDifference>> found(4), none(4);
  RunRanks(world, [&](CommFactory& factory) {
    const CommSet comms(
        factory, Mesh(2, 2), CommSharing::kSeparate,
        {{{Axis::kShard, StreamId::kGather}, {}}, {{Axis::kReplicate, StreamId::kReduce}, {}}});
    const size_t shard = comms.IndexOf({Axis::kShard, StreamId::kGather});
    // Ranks 0 and 1 are one group, 2 and 3 another, and these two need not do the same.
    const auto log_of = [&](int rank, bool odd) {
      OrderLog log(comms.members().size());
      log.Issued(shard, Kind::kAllGather, rank / 2, 64, 0);
      log.Issued(shard, Kind::kAllGather, odd ? 7 : 3, 64, 1);
      return log.Digests();
    };
    std::vector<std::string> same, odd;
    for (int rank = 0; rank < 4; ++rank) {
      same.push_back(log_of(rank, false));
      odd.push_back(log_of(rank, rank == 3));
    }
    none[static_cast<size_t>(factory.rank())] = FirstDifference(comms, same);
    found[static_cast<size_t>(factory.rank())] = FirstDifference(comms, odd);
    MR_CHECK(comms.members()[shard].name == "shard gather", "{}", comms.members()[shard].name);
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    CHECK_FALSE(none[rank].has_value());
    REQUIRE(found[rank].has_value());
    CHECK(found[rank]->comm == 1);  // the world's is 0
    CHECK(found[rank]->ranks == std::vector<int>{2, 3});
  }
}

TEST_CASE("ranks are named as the world numbers them", "[order]") {
  const auto other = [](OrderLog& log) { log.Issued(0, Kind::kAllGather, 2, 1, 1); };
  CHECK_THAT(DescribeOrder("shard gather", {2, 3},
                           {LogOf(5).History(0), LogOf(5, 4, other).History(0)}, {}),
             Catch::StartsWith("rank 3 has issued other collectives than rank 2 on") &&
                 Catch::EndsWith("on rank 2"));
}

}  // namespace
}  // namespace millrace
