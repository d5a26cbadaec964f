// Exchanges of real plans, made wrong one at a time: the checker reports each. Edges, lifetimes,
// streams and ops that do nothing are those of checker_mutations_test.cc, on the same plans.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "runtime/plan/check/checker.h"
#include "tests/runtime/plan/checker_mutations.h"
#include "tests/runtime/plan/checker_testing.h"

namespace millrace {
namespace {

using test::PlanCase;

bool IsExchange(const PlanOp& op) {
  return op.stream == StreamId::kExchange && IsCollective(op.op);
}

// f(gather or scatter) for an exchange.
template <class F>
void WithExchange(PlanOp& op, F f) {
  if (auto* gather = std::get_if<AllGatherOp<View>>(&op.op))
    f(*gather);
  else
    f(std::get<ReduceScatterOp<View>>(op.op));
}

std::optional<AxisSet> AxesOf(const PlanOp& op) {
  return std::visit(
      [](const auto& typed) -> std::optional<AxisSet> {
        if constexpr (requires { typed.axes; }) return typed.axes;
        return std::nullopt;
      },
      static_cast<const KernelOp::Alternatives&>(op.op));
}
void SetAxes(PlanOp& op, AxisSet axes) {
  std::visit(
      [&](auto& typed) {
        if constexpr (requires { typed.axes; }) typed.axes = axes;
      },
      static_cast<KernelOp::Alternatives&>(op.op));
}

TEST_CASE("plans with exchanges are proved", "[plan][checker]") {
  for (PlanCase c : test::SplitCases())
    for (const char* kind : {"train", "eval", "generate"}) {
      c.kind = kind;
      if (c.kind != "train") c.options.accumulate = 1;
      INFO(ToString(c));
      test::RequireProved(test::PlanOf(c), c.mesh, c.options.accumulate);
    }
}

TEST_CASE("an exchange over another axis of the same size is reported", "[plan][checker]") {
  for (const PlanCase& c : test::SplitCases()) {
    int changed = 0;
    for (const Axis axis : {Axis::kShard, Axis::kContext, Axis::kTensor}) {
      if (c.mesh.Size(axis) == 1) continue;
      const auto over_another = [&](PlanOp op) {
        bool another = false;
        if (IsExchange(op))
          WithExchange(op, [&](const auto& exchange) { another = exchange.axes != AxisSet(axis); });
        return another;
      };
      changed += test::RequireEachReported(c, over_another, [&](PlanOp& op) {
        WithExchange(op, [&](auto& exchange) { exchange.axes = axis; });
      });
    }
    CHECK(changed >= 9);  // keys of 3 blocks are gathered twice, and their gradients summed
  }
}

// Of parameters and their gradients, on plans that update them.
TEST_CASE("a gather or reduction over other axes than those that shard is reported",
          "[plan][checker]") {
  std::vector<AxisSet> sets;
  for (const Axis a : {Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor})
    for (const Axis b : {Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor})
      if (a <= b) sets.push_back({a, b});
  std::vector<PlanCase> cases = test::SplitCases();
  cases.push_back(cases.front());
  cases.back().mesh = Mesh(2, 1).With(Axis::kContext, 2).With(Axis::kTensor, 2);
  cases.back().options.downcast = Downcast::kAfterGather;
  cases.back().precision = test::Mixed(DType::kF32, DType::kBF16, DType::kBF16);
  int changed = 0;
  for (const PlanCase& c : cases)
    for (const AxisSet axes : sets) {
      const auto another = [&](const PlanOp& op) {
        const std::optional<AxisSet> own = AxesOf(op);
        return own && !IsExchange(op) && op.unit && c.mesh.Wide(*own) != c.mesh.Wide(axes) &&
               c.mesh.Size(*own) == c.mesh.Size(axes);
      };
      changed += test::RequireEachReported(c, another, [&](PlanOp& op) { SetAxes(op, axes); });
    }
  CHECK(changed > 60);
}

TEST_CASE("keys that are put in another rank's place are reported", "[plan][checker]") {
  int changed = 0;
  for (const PlanCase& c : test::SplitCases())
    for (const bool stays : {false, true})
      changed += test::RequireEachReported(
          c,
          [](const PlanOp& op) {
            const auto* copy = std::get_if<CopyRowsOp<View>>(&op.op);
            return copy != nullptr && copy->out.rank_stride != 0;
          },
          [&](PlanOp& op) {
            View& place = std::get<CopyRowsOp<View>>(op.op).out;
            if (stays)
              place.rank_stride = 0;
            else
              place.rank_axes = Axis::kReplicate;
          });
  CHECK(changed > 10);
}

// d_q by attention, d_k and d_v by the copy of what their sum is: together all columns of d_qkv.
TEST_CASE("a gradient of fused rows that its parts do not cover is reported", "[plan][checker]") {
  const auto puts_back = [](const PlanOp& op) {
    const auto* copy = std::get_if<CopyRowsOp<View>>(&op.op);
    return copy != nullptr && copy->out.rank_stride == 0;
  };
  const auto forms_part = [](const PlanOp& op) {
    const auto* attention = std::get_if<AttentionGradOp<View>>(&op.op);
    return attention != nullptr && attention->rows.split();
  };
  int changed = 0;
  for (const PlanCase& c : test::SplitCases()) {
    // One column less, at either end; the queries' columns in place of their own.
    for (const int64_t first : {0, 1})
      changed += test::RequireEachReported(c, puts_back, [&](PlanOp& op) {
        auto& copy = std::get<CopyRowsOp<View>>(op.op);
        for (View* view : {&copy.x, &copy.out}) {
          view->offset += first;
          --view->layout.dims[1];
        }
      });
    changed += test::RequireEachReported(
        c, puts_back, [](PlanOp& op) { --std::get<CopyRowsOp<View>>(op.op).out.offset; });
    changed += test::RequireEachReported(c, forms_part, [](PlanOp& op) {
      --std::get<AttentionGradOp<View>>(op.op).d_q.layout.dims[2];
    });
  }
  CHECK(changed == 4 * 2 * 3);  // of three blocks each, in two cases
}

// The fused rows [B, T/n, (H + 2 Hkv) D] have them beside the queries.
TEST_CASE("attention to the keys of a rank's own rows alone is reported", "[plan][checker]") {
  int changed = 0;
  for (const PlanCase& c : test::SplitCases())
    changed += test::RequireEachReported(
        c,
        [](const PlanOp& op) {
          const auto* attention = std::get_if<AttentionOp<View>>(&op.op);
          return attention != nullptr && attention->rows.split();
        },
        [](PlanOp& op) {
          auto& attention = std::get<AttentionOp<View>>(op.op);
          const int64_t heads = attention.k.layout.dims[2];
          int64_t first = attention.q.layout.dims[2];
          for (View* own : {&attention.k, &attention.v}) {
            *own = attention.q;
            own->offset += first * attention.q.layout.dims[3];
            own->layout.dims[2] = heads;
            first += heads;
          }
        });
  CHECK(changed >= 3);
}

TEST_CASE("an exchange into what others still read is reported", "[plan][checker]") {
  for (const PlanCase& c : test::SplitCases()) {
    const StepPlan plan = test::PlanOf(c);
    // Every buffer of activations in turn that has room.
    int tried = 0;
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const PlanBuffer& other = plan.buffers[b];
      if (other.scope != BufferScope::kMicrobatch || other.live.empty()) continue;
      const BufferId id{static_cast<int32_t>(b)};
      const auto into = [&](PlanOp op) -> const View {
        if (const auto* gather = std::get_if<AllGatherOp<View>>(&op.op)) return gather->full;
        return std::get<ReduceScatterOp<View>>(op.op).shard;
      };
      tried += test::RequireEachReported(
          c,
          [&](const PlanOp& op) {
            return IsExchange(op) && into(op).buffer != id &&
                   into(op).layout.span_bytes() <= other.bytes;
          },
          [&](PlanOp& op) {
            if (auto* gather = std::get_if<AllGatherOp<View>>(&op.op))
              gather->full.buffer = id;
            else
              std::get<ReduceScatterOp<View>>(op.op).shard.buffer = id;
          });
    }
    CHECK(tried > 100);
  }
}

TEST_CASE("a sum of products that are formed in part is reported", "[plan][checker]") {
  for (const PlanCase& c : test::SplitCases()) {
    const StepPlan plan = test::PlanOf(c);
    std::vector<BufferId> summed;
    for (const Body& body : plan.bodies)
      for (const PlanOp& op : body.ops)
        if (const auto* scatter = std::get_if<ReduceScatterOp<View>>(&op.op);
            scatter != nullptr && IsExchange(op))
          summed.push_back(scatter->full.buffer);
    const auto is_summed = [&](BufferId id) {
      return std::find(summed.begin(), summed.end(), id) != summed.end();
    };
    // Half of the rows of a product, or of what attention gives to gathered keys.
    const int halved = test::RequireEachReported(
        c,
        [&](const PlanOp& op) {
          if (const auto* product = std::get_if<MatmulOp<View>>(&op.op))
            return is_summed(product->out.buffer);
          const auto* attention = std::get_if<AttentionGradOp<View>>(&op.op);
          return attention != nullptr && is_summed(attention->d_k.buffer);
        },
        [](PlanOp& op) {
          if (auto* product = std::get_if<MatmulOp<View>>(&op.op))
            product->out.layout.dims[0] /= 2;
          else
            std::get<AttentionGradOp<View>>(op.op).d_v.layout.dims[0] /= 2;
        });
    CHECK(halved >= 3);
  }
}

TEST_CASE("an exchange of another strip's rows is reported where it leaves rows out",
          "[plan][checker]") {
  const PlanCase c = test::SplitCases().front();
  REQUIRE(c.strips == 2);
  int moved = 0;
  for (const bool whole : {false, true})
    moved += test::RequireEachReported(
        c,
        [&](const PlanOp& op) {
          if (!IsExchange(op)) return false;
          // What it writes: the other strip's place is written twice then, and its own not.
          return whole == std::holds_alternative<AllGatherOp<View>>(op.op);
        },
        [&](PlanOp& op) {
          WithExchange(op, [&](auto& exchange) {
            View& written = whole ? exchange.full : exchange.shard;
            const int64_t strip = written.layout.numel();
            written.offset += written.offset / strip % 2 == 0 ? strip : -strip;
          });
        });
  CHECK(moved > 30);
}

// f(rank integer) for those of the op.
template <class F>
void WithRankInts(KernelOp& op, F f) {
  std::visit([&](auto& typed) { ForEachRankInt(typed, f); },
             static_cast<KernelOp::Alternatives&>(op));
}

TEST_CASE("a rank integer that is off by one chunk, or over another axis, is reported",
          "[plan][checker]") {
  for (const PlanCase& c : test::SplitCases()) {
    const int64_t chunk = c.model.seq_len / 4;
    int changed = 0;
    for (size_t which = 0; which < 3; ++which)
      for (const int wrong : {0, 1, 2, 3}) {
        const auto place = [&](KernelOp op) -> std::optional<RankInt> {
          std::optional<RankInt> found;
          size_t at = 0;
          WithRankInts(op, [&](RankInt& integer, std::string_view name) {
            const bool of_rows = name == "row_begin" || name == "first" || name == "second";
            if (at++ == which && of_rows && integer.stride != 0) found = integer;
          });
          return found;
        };
        changed += test::RequireEachReported(
            c, [&](const PlanOp& op) { return place(op.op).has_value(); },
            [&](PlanOp& op) {
              size_t at = 0;
              WithRankInts(op.op, [&](RankInt& integer, std::string_view) {
                if (at++ != which) return;
                if (wrong == 0) integer.base += chunk;
                if (wrong == 1) integer.base -= chunk;
                if (wrong == 2) integer.stride = -integer.stride;
                if (wrong == 3) integer.axes = Axis::kReplicate;
              });
            });
      }
    CHECK(changed >= 8);
  }
}

}  // namespace
}  // namespace millrace
