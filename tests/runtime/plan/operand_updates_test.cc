// An op may write activations and add to parameters' gradients: each output's update is its own.
#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

struct Updates {
  Update table, positions;
  bool operator==(const Updates&) const = default;
};
constexpr Update kSet = Update::kOverwrite, kAdd = Update::kAccumulate;

// The updates of embed_grad in the backward of each variant: three microbatches on one rank, in a
// program whose gradient of the positions is made an activation, written with `positions`.
std::vector<Updates> EmbedGradUpdates(GradConcat concat, Update positions) {
  test::PlanCase c;
  c.model.tied = false;  // then embed_grad is the table's only contribution
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  c.options.accumulate = 3;
  c.options.grad_concat = concat;
  Program program = test::ProgramOf(c);
  auto& op = std::get<EmbedGradOp<View>>(
      std::find_if(program.backward.begin(), program.backward.end(), [](const ProgramOp& each) {
        return std::holds_alternative<EmbedGradOp<View>>(each.op);
      })->op);
  program.buffers[static_cast<size_t>(op.d_positions.buffer.value)].role = ProgramRole::kActivation;
  op.positions_update = positions;
  const StepPlan plan = PlanStep(test::LayoutOf(c), test::StatesOf(c), program, c.options, c.kind);
  std::vector<Updates> found;
  for (const Body& body : plan.bodies)
    for (const PlanOp& each : body.ops)
      if (const auto* grad = std::get_if<EmbedGradOp<View>>(&each.op))
        found.push_back({grad->table_update, grad->positions_update});
  return found;
}

TEST_CASE("later microbatches add to an op's parameter gradient and overwrite its activation",
          "[plan][planner]") {
  using List = std::vector<Updates>;
  CHECK(EmbedGradUpdates(GradConcat::kDirect, kSet) ==
        List{{kSet, kSet}, {kAdd, kSet}, {kAdd, kSet}});
  // A part that is copied away at once is overwritten each time; the activation stays as it was.
  CHECK(EmbedGradUpdates(GradConcat::kEvery, kAdd) ==
        List{{kSet, kAdd}, {kSet, kAdd}, {kSet, kAdd}});
}

TEST_CASE("operands yield their own update, and the others none", "[plan]") {
  EmbedGradOp<View> op;
  int32_t next = 0;
  for (View* view : {&op.tokens, &op.d_out, &op.d_table, &op.d_positions, &op.scalars, &op.scratch})
    view->buffer = {next++};
  KernelOp any = op;
  std::vector<std::string> updated;
  ForEachView(any, [&](View&, Update* update, std::string_view name) {
    if (update == nullptr) return;
    updated.emplace_back(name);
    if (name == "d_positions") *update = kAdd;
  });
  CHECK(updated == std::vector<std::string>{"d_table", "d_positions"});
  const auto& changed = std::get<EmbedGradOp<View>>(any);
  CHECK(changed.table_update == kSet);
  CHECK(changed.positions_update == kAdd);
  std::vector<std::pair<std::string, Access>> uses;
  ForEachUse(any, [&](const View&, Access access, std::string_view name) {
    uses.emplace_back(name, access);
  });
  CHECK(uses[3] == std::pair<std::string, Access>{"d_table", Access::kWrite});
  CHECK(uses[4] == std::pair<std::string, Access>{"d_positions", Access::kAccumulate});
}

TEST_CASE("a gradient that an op cannot accumulate is no gradient for the planner",
          "[plan][planner]") {
  test::PlanCase c;
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  Program program = test::ProgramOf(c);
  const auto* grad = [&]() -> const NormGradOp<View>* {
    for (const ProgramOp& op : program.backward)
      if (const auto* found = std::get_if<NormGradOp<View>>(&op.op)) return found;
    return nullptr;
  }();
  REQUIRE(grad != nullptr);
  ProgramBuffer& d_x = program.buffers[static_cast<size_t>(grad->d_x.buffer.value)];
  d_x.role = ProgramRole::kParamGrad;
  d_x.param = ParamId{0};
  CHECK_THROWS_WITH(PlanStep(test::LayoutOf(c), test::StatesOf(c), program, c.options, c.kind),
                    Catch::Contains("has no update"));
}

}  // namespace
}  // namespace millrace
