// A rank that issues two exchanges of one size in the other order hangs nobody; the logs of what
// was issued tell, and on which communicator.
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/exec/agreement/order_log.h"
#include "runtime/exec/agreement/plan_agreement.h"
#include "runtime/exec/observe/observers.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Catch::Contains;

bool IsOver(const PlanOp& op, Axis axis) {
  const std::optional<PlannedCall> call = CallOf(op.op);
  return call && op.stream == StreamId::kExchange && call->axes == AxisSet(axis);
}

// The first two exchanges over an axis that have one kind and size and no other collective between
// them: on host streams, which run at once, a rank that waits there would wait for ever.
std::pair<const PlanOp*, const PlanOp*> AlikeNeighbours(const StepPlan& plan, Axis axis) {
  const PlanOp* before = nullptr;
  for (const Entry& entry : plan.schedule)
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops) {
      if (!CallOf(op.op)) continue;
      const bool exchange = IsOver(op, axis);
      if (exchange && before != nullptr && before->op.index() == op.op.index() &&
          CallOf(before->op)->bytes() == CallOf(op.op)->bytes())
        return {before, &op};
      before = exchange ? &op : nullptr;
    }
  MR_CHECK(false, "no two exchanges over {} are alike", Name(axis));
  return {};
}

// Issues the first of the two behind the second.
class SwapExchanges final : public OpObserver {
 public:
  explicit SwapExchanges(Axis axis) : axis_(axis) {}
  void BeginRun(const StepPlan& plan) override { pair_ = AlikeNeighbours(plan, axis_); }
  void Before(const PlanOp&, int64_t, int) override {}
  void Issue(const PlanOp& op, const std::function<void()>& issue) override {
    if (&op == pair_.first) {
      issue_held_ = issue;
      return;
    }
    issue();
    if (&op == pair_.second) std::exchange(issue_held_, nullptr)();
  }
  void After(const PlanOp&, int64_t, int) override {}
  void EndRun() override {}
  bool looks_at_memory() const override { return false; }

 private:
  const Axis axis_;
  std::pair<const PlanOp*, const PlanOp*> pair_;
  std::function<void()> issue_held_;
};

struct Run {
  std::string difference;  // between what ranks have issued; "": none
  std::string bits;
};

// Two steps; rank 1 swaps exchanges of the second where `axis` is given.
Run RunSteps(const Trial& trial, std::optional<Axis> axis) {
  Run run;
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(5);
    rank.engine.LogOrder();
    StepOn(rank, trial.config, 0);
    std::optional<SwapExchanges> swap;
    if (axis && rank.rank == 1) rank.engine.Observe(&swap.emplace(*axis));
    const StepScalars scalars = StepOn(rank, trial.config, 1);
    rank.engine.Observe(nullptr);
    const CommSet& comms = rank.engine.comms();
    const OrderLog& log = *rank.engine.order();
    const auto found = FirstDifference(comms, comms.world().HostAllGather(log.Digests()));
    std::string text;
    if (found) {
      const std::vector<std::string> all = comms.world().HostAllGather(log.History(found->comm));
      std::vector<std::string> histories, units;
      for (const int r : found->ranks) histories.push_back(all[static_cast<size_t>(r)]);
      for (const UnitSpec& unit : rank.run.spec.units) units.push_back(unit.name);
      text = DescribeOrder(comms.members()[found->comm].name, found->ranks, histories, units);
    }
    if (rank.rank == 0) run = {text, std::to_string(scalars.grad_norm)};
  });
  return run;
}

TEST_CASE("exchanges in another order on one rank are told, with their communicator") {
  struct Shape {
    int shard, context, tensor, strips;
    Axis axis;
    const char* name;
  };
  for (const Shape& s : {Shape{1, 1, 2, 1, Axis::kTensor, "tensor"},
                         {1, 1, 2, 2, Axis::kTensor, "tensor"},
                         {2, 1, 2, 1, Axis::kTensor, "tensor"},
                         {1, 2, 1, 1, Axis::kContext, "context"},
                         {1, 2, 2, 1, Axis::kTensor, "tensor"}})
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
      Base base = MakeBase(family, true, Precision::kFp32, s.shard * s.context * s.tensor, 2);
      MakeTensor(base, s.tensor);
      base.trial.config.model.seq_len = 12;
      base.trial.config.parallel.context = s.context;
      base.trial.config.parallel.tensor_strips = s.strips;
      base.trial.config.execution.graph = ExecutionConfig::Graph::kOff;  // as observed ops run
      base.trial.config.sharding.reshard = ShardingConfig::Reshard::kNever;
      INFO(base.name << " context " << s.context << " strips " << s.strips << " swap " << s.name);
      if (!HaveDevices(base.trial.world)) continue;
      const Run right = RunSteps(base.trial, std::nullopt), wrong = RunSteps(base.trial, s.axis);
      CHECK(right.difference.empty());
      CHECK_THAT(wrong.difference,
                 Contains("on the communicator '" + std::string(s.name) + " exchange': call ") &&
                     Contains("of step 2), and "));
      CHECK(wrong.bits != right.bits);  // nothing else would have told
    }
}

}  // namespace
}  // namespace millrace::test
