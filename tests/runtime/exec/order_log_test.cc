// Logs of collectives: what makes two of them differ, and what is said of ranks that part.
#include "runtime/exec/order_log.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

namespace millrace {
namespace {

using Kind = OrderLog::Kind;

// `calls` gathers of units 0, 1, 2, 0, ... in steps of three, with `other` in
// place of call `at` (from 0).
OrderLog LogOf(int64_t calls, int64_t at = -1, const std::function<void(OrderLog&)>& other = {}) {
  OrderLog log;
  for (int64_t i = 0; i < calls; ++i) {
    log.BeginRun({PlanKind::kTrain, false, i / 3});
    if (i == at)
      other(log);
    else
      log.Issued(Kind::kAllGather, AxisGroup::kShard, static_cast<int32_t>(i % 3), 64 + i % 3);
  }
  return log;
}

std::string Described(const std::vector<OrderLog>& ranks) {
  std::vector<std::string> histories;
  for (const OrderLog& log : ranks) histories.push_back(log.History());
  return DescribeOrder(histories, {"embed", "h.0", "head"});
}

TEST_CASE("whatever a call is known by makes another digest", "[order]") {
  const std::string same = LogOf(7).Digest();
  CHECK(LogOf(7).Digest() == same);
  CHECK(LogOf(6).Digest() != same);
  const std::vector<std::function<void(OrderLog&)>> others = {
      [](OrderLog& log) { log.Issued(Kind::kReduceScatter, AxisGroup::kShard, 1, 65); },
      [](OrderLog& log) { log.Issued(Kind::kAllGather, AxisGroup::kReplicate, 1, 65); },
      [](OrderLog& log) { log.Issued(Kind::kAllGather, AxisGroup::kShard, 2, 65); },
      [](OrderLog& log) { log.Issued(Kind::kAllGather, AxisGroup::kShard, 1, 66); },
      [](OrderLog& log) {
        log.BeginRun({PlanKind::kTrain, false, 2});
        log.Issued(Kind::kAllGather, AxisGroup::kShard, 1, 65);
      },
      [](OrderLog&) {},
  };
  for (const auto& other : others) CHECK(LogOf(7, 4, other).Digest() != same);
  CHECK(LogOf(7, 4, [](OrderLog& log) {
          log.Issued(Kind::kAllGather, AxisGroup::kShard, 1, 65);
        }).Digest() == same);
}

TEST_CASE("the rank that is alone is named, with its first call that differs", "[order]") {
  const auto other = [](OrderLog& log) {
    log.Issued(Kind::kAllReduce, AxisGroup::kReplicate, -1, 8);
  };
  const std::string words =
      " has issued other collectives than rank {}: call 5 is all_reduce of no unit (8 bytes, "
      "replicate group, step 2), and all_gather of unit h.0 (65 bytes, shard group, step 2) on "
      "rank {}";
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
        "rank 1 has issued other collectives than rank 0: call 4 is nothing, and all_gather of "
        "unit embed (64 bytes, shard group, step 2) on rank 0");
  CHECK(Described({LogOf(1), LogOf(0)}) ==
        "rank 1 has issued other collectives than rank 0: call 1 is nothing, and all_gather of "
        "unit embed (64 bytes, shard group, step 1) on rank 0");
}

TEST_CASE("of long logs the newest calls are kept; what is older can only be told to be so",
          "[order]") {
  const int64_t calls = 3 * OrderLog::kKept + 5;
  const auto other = [](OrderLog& log) { log.Issued(Kind::kAllGather, AxisGroup::kShard, 2, 1); };
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

}  // namespace
}  // namespace millrace
