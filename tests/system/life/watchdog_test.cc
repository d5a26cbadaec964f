// Watched ranks that train, save and evaluate: what is slow is not hung, and what hangs is named.
#include "runtime/watch/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/exec/agreement/plan_agreement.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/recorded_step.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "runtime/run/faults/collective_fault.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

constexpr auto kLimit = 500ms;

// A disk that takes its time.
struct SlowDisk : FileSystem {
  std::chrono::milliseconds write{0}, sync{0};
  std::atomic<int> slow_writes = 40;  // so many are slow
  ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset) override {
    if (slow_writes-- > 0) std::this_thread::sleep_for(write);
    return FileSystem::Write(fd, data, bytes, offset);
  }
  int Sync(int fd) override {
    std::this_thread::sleep_for(sync);
    return FileSystem::Sync(fd);
  }
};

// Trains two steps, evaluates and saves on `disk`, watched; what the watchdogs have said.
std::vector<std::string> Watched(Trial trial, FileSystem& disk) {
  trial.all_plans = true;
  const TempDir temp;
  const AssembledRun run = PlanOf(trial);
  std::vector<std::string> verdicts;
  std::mutex mutex;
  TestRanks().Run(trial.world, [&](const RankSetup& setup) {
    CommSet comms(setup.comms, run.layout.mesh, trial.sharing, CommSpecsOf(run.plans.All()));
    ProgressMarks marks;
    WatchdogOptions options;
    options.limit = kLimit;
    options.on_stall = [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      verdicts.push_back(text);
    };
    PlanNames names{run.plans.All(), {}};
    for (const UnitSpec& unit : run.spec.units) names.units.push_back(unit.name);
    std::string warning;
    const auto watchdog =
        Watchdog::Start(comms.world(), temp / "run", marks, names, options, warning);
    EngineOptions engine_options;
    engine_options.graph = trial.config.execution.graph;
    engine_options.adversary_seed = trial.adversary_seed;
    Engine engine({&setup.device, &setup.kernels, &comms, &marks}, run.layout, run.plans,
                  engine_options);
    RankContext rank{engine, run, setup.comms.rank(), setup.comms.world_size()};
    engine.InitWeights(5);
    for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
    const PhaseScope saving(&marks, RunPhase::kSaving, 2);
    const RunIdentity identity{ModelOptionsOf(trial.config), "tokens", 0, 4, "{}"};
    SaveRun(engine, temp / "run", {2, 8}, identity, 1, disk);
    SaveRun(engine, temp / "run", {3, 12}, identity, 1, disk);
    comms.world().Barrier();
  });
  return verdicts;
}

Trial Small() {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, 2, 2).trial;
  trial.config.model.layers = 2;
  return trial;
}

TEST_CASE(
    "a save that takes much longer than the limit is no hang while it writes, or waits for the "
    "disk") {
  if (!HaveDevices(2)) return;
  SlowDisk slow_writes, slow_sync;
  slow_writes.write = kLimit / 4;  // some dozen of them
  slow_sync.sync = 2 * kLimit;
  CHECK(Watched(Small(), slow_writes).empty());
  CHECK(Watched(Small(), slow_sync).empty());
}

TEST_CASE("a write that takes longer than the limit is one") {
  if (!HaveDevices(2)) return;
  SlowDisk stuck;
  stuck.write = 3 * kLimit;
  stuck.slow_writes = 8;  // the headers are not judged
  const std::vector<std::string> verdicts = Watched(Small(), stuck);
  REQUIRE_FALSE(verdicts.empty());
  CHECK_THAT(verdicts[0], Contains("\"saving a checkpoint\", after step 2"));
}

// What the marks say when a step is done, from the plan's own order.
struct LastMarks {
  int64_t ops = 0;
  std::array<uint64_t, kStreams> words{};
};
LastMarks LastMarksOf(const StepPlan& plan, int world) {
  LastMarks last;
  for (const Entry& entry : plan.schedule) {
    const PlanOp* before = nullptr;  // on the compute stream
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops) {
      uint64_t& word = last.words[static_cast<size_t>(op.stream)];
      if (IsCollective(op.op))
        word = StreamWord(last.ops, StreamMark::kPassedCollective);
      else if (world > 1 && op.stream == StreamId::kCompute &&
               (before == nullptr || before->unit != op.unit))
        word = StreamWord(last.ops, StreamMark::kComputing);
      if (op.stream == StreamId::kCompute) before = &op;
      ++last.ops;
    }
  }
  return last;
}

TEST_CASE(
    "every way of executing a step leaves the marks of its last ops, on each stream of a device") {
  if (!HaveDevices(2)) return;
  for (const auto graph : {ExecutionConfig::Graph::kStep, ExecutionConfig::Graph::kMicrobatch,
                           ExecutionConfig::Graph::kOff}) {
    Trial trial = Small();
    trial.config.execution.graph = graph;
    const AssembledRun run = PlanOf(trial);
    const LastMarks last = LastMarksOf(run.plans.Of("train"), trial.world);
    TestRanks().Run(trial.world, [&](const RankSetup& setup) {
      CommSet comms(setup.comms, run.layout.mesh, trial.sharing, CommSpecsOf(run.plans.All()));
      ProgressMarks marks;
      EngineOptions options;
      options.graph = trial.config.execution.graph;
      Engine engine({&setup.device, &setup.kernels, &comms, &marks}, run.layout, run.plans,
                    options);
      RankContext rank{engine, run, setup.comms.rank(), setup.comms.world_size()};
      engine.InitWeights(5);
      for (int64_t step = 0; step < 5; ++step) {
        StepOn(rank, trial.config, step);
        const ProgressReading reading = marks.Read();
        MR_CHECK_EQ(reading.runs, static_cast<uint64_t>(step) + 2,
                    "runs after step {}, prologue included", step);
        MR_CHECK_EQ(reading.host_run.step, step, "step of the last run");
        MR_CHECK(!reading.busy(), "busy after step {}", step);
        if (!setup.device.captures()) {
          MR_CHECK_EQ(reading.index, last.ops - 1, "last op of step {}", step);
          continue;
        }
        MR_CHECK_EQ(reading.device[kRunDoneWord], reading.runs, "run that the device has done");
        MR_CHECK_EQ(reading.device_run.step, step, "step of the device's last run");
        for (size_t s = 0; s < kStreams; ++s)
          MR_CHECK_EQ(reading.device[kFirstStreamWord + s], last.words[s],
                      "last mark of stream {} in step {}, graph {}", s, step,
                      static_cast<int>(graph));
      }
      if (rank.rank == 0 && setup.device.captures() && engine.recorded_step() != nullptr)
        WARN("graph " << static_cast<int>(graph) << ": " << engine.recorded_step()->nodes()
                      << " nodes, " << engine.recorded_step()->mark_nodes() << " of them marks");
    });
  }
}

// From the first exchange over an axis on, a rank issues none of the step's collectives.
class LeaveOutExchanges final : public OpObserver {
 public:
  explicit LeaveOutExchanges(Axis axis) : axis_(axis) {}
  void BeginRun(const StepPlan&) override { reached_ = false; }
  void Before(const PlanOp&, int64_t, int) override {}
  void Issue(const PlanOp& op, const std::function<void()>& issue) override {
    const std::optional<PlannedCall> call = CallOf(op.op);
    reached_ |= call && op.stream == StreamId::kExchange && call->axes == AxisSet(axis_);
    if (!call || !reached_) issue();
  }
  void After(const PlanOp&, int64_t, int) override {}
  void EndRun() override {}
  bool looks_at_memory() const override { return false; }

 private:
  const Axis axis_;
  bool reached_ = false;
};

// What is said of a hang in the fourth step, which `fault` has made on rank 1. The step hangs until
// it is aborted, and then fails with that.
std::string HangVerdict(const Trial& trial, const AssembledRun& run, OpObserver& fault) {
  const TempDir temp;
  std::vector<std::string> verdicts;
  std::mutex mutex;
  std::barrier all_ended(trial.world);
  const auto work = [&](const RankSetup& setup) {
    CommSet comms(setup.comms, run.layout.mesh, trial.sharing, CommSpecsOf(run.plans.All()));
    ProgressMarks marks;
    WatchdogOptions options;
    options.limit = 3s;  // a first step loads libraries
    options.on_stall = [&](const std::string& text) {
      {
        const std::lock_guard lock(mutex);
        verdicts.push_back(text);
      }
      comms.Abort(text);
    };
    options.check_transport = [&] {
      comms.CheckHealth();
    };  // over the memory of peers it names a peer
    PlanNames names{run.plans.All(), {}};
    for (const UnitSpec& unit : run.spec.units) names.units.push_back(unit.name);
    std::string warning;
    const auto watchdog =
        Watchdog::Start(comms.world(), temp / "run", marks, names, options, warning);
    Engine engine({&setup.device, &setup.kernels, &comms, &marks}, run.layout, run.plans, {});
    RankContext rank{engine, run, setup.comms.rank(), setup.comms.world_size()};
    engine.InitWeights(5);
    const PhaseScope training(&marks, RunPhase::kTraining);
    for (int64_t step = 0; step < 3; ++step) StepOn(rank, trial.config, step);
    if (rank.rank == 1) engine.Observe(&fault);
    try {
      StepOn(rank, trial.config, 3);
      comms.world().Barrier();
      MR_CHECK(false, "rank {} got through a step that hangs", rank.rank);
    } catch (const std::exception&) {
      // Ranks are threads here, and a kernel over the memory of peers may touch this rank's until
      // it has ended as well. Processes exit instead.
      all_ended.arrive_and_wait();
      throw;
    }
  };
  CHECK_THROWS_WITH(TestRanks().Run(trial.world, work), Contains("no progress for"));
  REQUIRE_FALSE(verdicts.empty());
  return verdicts[0];
}

TEST_CASE(
    "a rank that leaves out a collective leaves the others in it, and the verdict says which") {
  const Trial trial = Small();
  if (!HaveDevices(trial.world)) return;
  const AssembledRun run = PlanOf(trial);
  CollectiveFault left_out(CollectiveFault::Kind::kLeaveOut, UnitId{2});
  const std::string& unit = run.spec.units[2].name;
  CHECK_THAT(
      HangVerdict(trial, run, left_out),
      Contains(fmt::format("rank 0 (pid {}", ::getpid())) &&
          Contains(fmt::format("waits in all_gather of unit {} (op gather/{}, stream gather over "
                               "shard",
                               unit, unit)) &&
          Contains("step 4") && Contains("which others have passed, or left out; rank 1"));
}

TEST_CASE("a hang in an exchange is said to be over its axis") {
  struct Shape {
    int shard, context, tensor;
    const char* waits;  // rank 0, for rank 1
  };
  for (const Shape& shape : {Shape{1, 1, 2, "h.0/attn.qkv.rows, stream exchange over tensor"},
                             {1, 2, 1, "h.0/attn:keys, stream exchange over context"},
                             {2, 1, 2, "h.0/attn.qkv.rows, stream exchange over tensor"}}) {
    Base base = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32,
                         shape.shard * shape.context * shape.tensor, 2);
    MakeTensor(base, shape.tensor);
    Trial& trial = base.trial;
    trial.config.model.layers = 2;
    trial.config.model.seq_len = 12;
    trial.config.parallel.context = shape.context;
    if (!HaveDevices(trial.world)) continue;
    LeaveOutExchanges left_out(shape.tensor > 1 ? Axis::kTensor : Axis::kContext);
    CHECK_THAT(HangVerdict(trial, PlanOf(trial), left_out),
               Contains(fmt::format("rank 0 (pid {}", ::getpid())) &&
                   Contains(fmt::format("waits in all_gather of unit h.0 (op {}", shape.waits)) &&
                   Contains("step 4") && Contains("which others have passed, or left out"));
  }
}

}  // namespace
}  // namespace millrace::test
