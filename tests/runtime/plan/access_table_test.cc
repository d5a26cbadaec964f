// A table of several ranks has, for every byte of each of them, the accesses of that rank's own
// table: what is proved of its cells is proved of all ranks.
#include "runtime/plan/check/access_table.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/plan/checker_testing.h"
#include "tests/runtime/plan/hand_plan.h"

namespace millrace::test {
namespace {

constexpr StreamId kC = StreamId::kCompute;

// Copies between parts of three buffers and of a state, of which some lie elsewhere on other ranks.
StepPlan RandomPlan(std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  HandPlan p;
  std::vector<BufferId> buffers = {p.Master("state")};
  for (const int64_t slot : {1, 2, 3})
    buffers.push_back(p.Buffer(std::to_string(slot), slot, {{0, 8}}));
  for (int op = 0; op < 8; ++op) {
    const int64_t numel = 1 + below(8);
    const auto part = [&] {
      View view = p.Part(buffers[static_cast<size_t>(below(4))], below(16), numel);
      if (below(3) == 0) view.rank_stride = 1 + below(5);
      return view;
    };
    const View x = part();
    View out = part();
    if (below(3) == 0) {  // columns of rows
      out.layout = DenseLayout(DType::kF32, {2 + below(2), 1 + below(2)});
      out.layout.strides[0] = 3 + below(3);
    }
    if (out.buffer == x.buffer) out.buffer = buffers[x.buffer == buffers[0] ? 1 : 0];
    p.Copy(kC, x, out);
  }
  AllGatherOp<View> gather;
  gather.full = p.Whole(buffers[static_cast<size_t>(below(4))]);
  if (below(2) == 0) p.plan.bodies.back().ops[static_cast<size_t>(below(8))].op = gather;
  return p.Done();
}

// What happens to a byte, in order.
std::vector<std::string> History(const StepPlan& plan, const AccessTable& table, int64_t byte) {
  std::vector<std::string> history;
  for (int op = 0; op < static_cast<int>(plan.bodies[0].ops.size()); ++op)
    for (const CellAccess& access : table.of(0, op))
      if (table.bytes(access.cells.first).begin <= byte &&
          byte < table.bytes({access.cells.last.value - 1}).end) {
        history.push_back(std::to_string(op) + " " + std::string(access.operand) + " " +
                          std::to_string(static_cast<int>(access.effect)) + " " +
                          std::to_string(access.buffer.value));
        if (access.effect != Effect::kPart) continue;
        const Columns& columns = table.ColumnsOf(access);
        if ((byte - columns.begin) % columns.stride < columns.width) history.back() += " written";
      }
  return history;
}

}  // namespace

TEST_CASE("a table of ranks says of each what its own table says", "[plan][checker]") {
  const Mesh mesh{1, 8};
  const std::vector<int> ranks = {0, 4, 7};
  std::mt19937 random(1);
  int64_t apart = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const StepPlan plan = RandomPlan(random);
    Violations problems;
    const AccessTable joint(plan, mesh, 1, ranks, &problems);
    REQUIRE(problems.empty());
    for (size_t k = 0; k < ranks.size(); ++k) {
      const AccessTable own(plan, mesh, 1, {ranks[k]}, &problems);
      for (int64_t byte = 0; byte < plan.arena_bytes; ++byte) {
        const std::vector<ByteRange> on = joint.On(k, {byte, byte + 1});
        REQUIRE(on.size() == 1);
        REQUIRE(on[0].end == on[0].begin + 1);
        apart += on[0].begin != byte;
        INFO("trial " << trial << ", rank " << ranks[k] << ", byte " << byte);
        REQUIRE(History(plan, joint, on[0].begin) == History(plan, own, byte));
      }
    }
  }
  // Some have cells of their own, most do not.
  CHECK(apart > 1000);
  CHECK(apart < 60 * 2 * 1024 / 2);
}

TEST_CASE("bytes that differ by rank are proved on each corner", "[plan][checker]") {
  const Mesh mesh{1, 8};
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  View cell = p.Part(a, 0, 4);
  cell.rank_stride = 4;
  p.Copy(kC, p.Whole(weights), p.Whole(a));
  SECTION("a race of the last rank alone") {
    p.Copy(StreamId::kGather, p.Part(weights, 0, 4), cell);
    p.Copy(kC, p.Part(a, 28, 4), p.Part(b, 0, 4));
    RequireViolation(p.Done({{1, 0}}), ViolationKind::kRace,
                     "(bytes [368, 384) of the arena, rank 7)", mesh);
    RequireProved(p.Done({{1, 0}, {2, 1}}), mesh);
  }
  SECTION("an output that others than the first have not") {
    View written = p.Part(b, 0, 4);
    written.rank_stride = 4;
    p.plan.buffers[static_cast<size_t>(b.value)].scope = BufferScope::kCarried;
    p.Copy(kC, p.Part(a, 0, 4), written);
    p.plan.outputs.push_back({"cell", written});
    RequireProved(p.Done(), mesh);
    p.plan.outputs[0].view.rank_stride = 5;
    RequireViolation(p.Done(), ViolationKind::kUndefined, "output cell: b does not survive", mesh);
    RequireProved(p.Done(), {1, 1});
  }
}

}  // namespace millrace::test
