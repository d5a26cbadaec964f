// What the streams of an executor are for.
#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "runtime/base/stream_id.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

using Roles = std::vector<StreamRole>;

// By rank, in the order of StreamId.
std::vector<Roles> RolesOf(int ranks) {
  PlanCase c;
  c.mesh = {1, ranks};
  c.options.comm_scratch_bytes = 1 << 21;
  std::vector<Roles> roles(static_cast<size_t>(ranks));
  RunEngines(
      c, {}, [](Engine&, int) {},
      [&](int rank) {
        return MakeCapturingDevice({.at_stream = [&roles, rank](StreamRole role) {
          roles[static_cast<size_t>(rank)].push_back(role);
        }});
      });
  return roles;
}

TEST_CASE(
    "collectives go first on ranks that have them; a rank alone has a chain ahead of the rest") {
  static_assert(kStreams == 4);
  CHECK(RolesOf(1) == std::vector<Roles>{{StreamRole::kChain, StreamRole::kCompute,
                                          StreamRole::kCompute, StreamRole::kCompute}});
  const Roles of_many = {StreamRole::kCompute, StreamRole::kCollectives, StreamRole::kCollectives,
                         StreamRole::kCollectives};
  CHECK(RolesOf(2) == std::vector<Roles>(2, of_many));
}

}  // namespace
}  // namespace millrace::test
