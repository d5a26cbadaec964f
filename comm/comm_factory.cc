#include "comm/comm_factory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "runtime/base/error.h"

namespace millrace {

int CheckedGroupRank(const std::vector<int>& ranks, const std::string& label, int rank,
                     int world_size) {
  const auto listed = [&] { return fmt::format("{}", fmt::join(ranks, ", ")); };
  MR_REQUIRE(ErrorCode::kInvalidArgument, !ranks.empty(), "communicator '{}': the group is empty",
             label);
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end(),
             "communicator '{}': ranks [{}] are not ascending", label, listed());
  MR_REQUIRE(ErrorCode::kInvalidArgument, ranks.front() >= 0 && ranks.back() < world_size,
             "communicator '{}': ranks [{}] are not all in a world of {}", label, listed(),
             world_size);
  const auto own = std::find(ranks.begin(), ranks.end(), rank);
  MR_REQUIRE(ErrorCode::kInvalidArgument, own != ranks.end(),
             "communicator '{}': rank {} asks for a group [{}] that it is not in", label, rank,
             listed());
  return static_cast<int>(own - ranks.begin());
}

}  // namespace millrace
