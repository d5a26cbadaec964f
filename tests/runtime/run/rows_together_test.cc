// What a recorded step gives the kernel table at once: the linears of one row that stand one behind
// the other, and nothing that somebody waits for or looks at in between.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "comm/comm_set.h"
#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "kernels/ops/kernel_table.h"
#include "runtime/config/load.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/recorded_step.h"
#include "runtime/run/assemble.h"
#include "runtime/run/generate/inference_plans.h"
#include "tests/support/capturing_device.h"

namespace millrace {
namespace {

using Row = RowLinearOp<TensorView>;

// What was issued, in order; of a chain its size as offered and that of the next one, then its
// linears.
thread_local std::vector<std::string> issued;
thread_local std::vector<const std::byte*> outs;  // of linears
std::vector<int64_t> places;                      // these of rank 0, from where the arena begins
size_t most_taken = 0;

template <template <class> class Op>
void Note(const Op<TensorView>& op, Stream&) {
  issued.emplace_back(Op<TensorView>::kName);
  if constexpr (std::is_same_v<Op<TensorView>, Row>) outs.push_back(op.out.data);
}
size_t TakeChain(std::span<const Row* const> ops, std::span<const Row* const> next,
                 Stream& stream) {
  issued.push_back("offered " + std::to_string(ops.size()) + ", next " +
                   std::to_string(next.size()));
  for (const Row* const row : next)
    if (std::find(ops.begin(), ops.end(), row) != ops.end()) issued.emplace_back("offered as next");
  const size_t taken = std::min(most_taken, ops.size());
  for (size_t i = 0; i < taken; ++i) Note<RowLinearOp>(*ops[i], stream);
  return taken;
}
KernelTable NotingTable() {
#define MILLRACE_NOTE(Name, entry) .entry = Note<Name##Op>,
  KernelTable table{MILLRACE_KERNEL_OPS(MILLRACE_NOTE)};
#undef MILLRACE_NOTE
  table.row_linears = TakeChain;
  return table;
}

struct Looking : CaptureObserver {
  int ops = 0;
  void BeginGraph() override {}
  void Before(const PlanOp&, Stream&, bool) override { ++ops; }
  void After(const PlanOp&, Stream&) override {}
};

class Llama {
 public:
  explicit Llama(int tensor = 1) : world_(tensor) {
    const std::vector<std::string> sets = {"parallel.tensor=" + std::to_string(tensor),
                                           "model.family=llama",
                                           "model.kv_heads=2",
                                           "model.ffn=96",
                                           "data.kind=synthetic",
                                           "model.layers=2",
                                           "model.d_model=64",
                                           "model.heads=4",
                                           "model.vocab=100",
                                           "model.seq_len=32",
                                           "train.micro_batch=1",
                                           "inference.slots=4",
                                           "inference.decode=[1]",
                                           "inference.prefill=[16]",
                                           "precision.compute=bf16",
                                           "precision.norms=compute"};
    const LoadedConfig loaded = LoadConfig({}, sets, {.world = tensor, .has_cuda = true});
    run_ =
        Assemble(loaded.config, tensor, {.backend = Backend::kCuda, .comm_scratch_bytes = 1 << 20},
                 {std::string(kInferencePlans)});
  }
  const StepPlan& plan() const { return run_.plans.Of(DecodePlan(1)); }

  // What rank 0 issues when the step is replayed first, or then captured.
  std::vector<std::string> Issued(const KernelTable& table, CaptureObserver* observer = nullptr) {
    std::vector<std::string> of_first;
    RunRanks(world_, [&](CommFactory& factory) {
      const auto device = test::MakeCapturingDevice();
      const auto arena = device->Allocate(plan().arena_bytes, "arena");
      CommSet comms(factory, run_.layout.mesh, CommSharing::kSeparate,
                    CommSpecsOf(run_.plans.All()));
      Executor executor({device.get(), &table, &comms});
      const Binding binding{&plan(), arena->data(), run_.layout.mesh, factory.rank()};
      RecordedStep step(executor, binding, plan().schedule, GraphMode::kStep, observer);
      if (observer != nullptr) step.Replay(binding);
      issued.clear(), outs.clear();
      step.Replay(binding);
      if (factory.rank() > 0) return;
      of_first = issued;
      places.clear();
      for (const std::byte* const out : outs) places.push_back(out - arena->data());
    });
    return of_first;
  }

 private:
  LocalWorld world_;
  AssembledRun run_;
};

const std::vector<std::string> kAlone = {
    "embed_rows", "row_linear",       "cached_attention", "row_linear", "row_linear", "row_linear",
    "row_linear", "cached_attention", "row_linear",       "row_linear", "row_linear", "row_linear",
    "sample"};

TEST_CASE("linears that stand one behind the other are offered at once", "[exec]") {
  Llama llama;
  most_taken = 4;
  CHECK(llama.Issued(NotingTable()) ==
        std::vector<std::string>{"embed_rows", "row_linear", "cached_attention",
                                 "offered 4, next 4", "row_linear", "row_linear", "row_linear",
                                 "row_linear", "cached_attention", "offered 4, next 0",
                                 "row_linear", "row_linear", "row_linear", "row_linear", "sample"});
}

TEST_CASE("what is not taken is issued, each op once and in its order", "[exec]") {
  Llama llama;
  std::vector<int64_t> alone;
  for (most_taken = 0; most_taken <= 4; ++most_taken) {
    INFO("at most " << most_taken);
    std::vector<std::string> ops = llama.Issued(NotingTable());
    if (most_taken == 0) alone = places;
    CHECK(places.size() == 9);
    CHECK(places == alone);
    std::erase_if(ops, [](const std::string& name) { return name.starts_with("offered"); });
    CHECK(ops == kAlone);
  }
}

TEST_CASE("who looks at each op sees each op", "[exec]") {
  Llama llama;
  most_taken = 4;
  Looking observer;
  CHECK(llama.Issued(NotingTable(), &observer) == kAlone);
  CHECK(observer.ops == static_cast<int>(kAlone.size()));
}

TEST_CASE("a step with collectives has a kernel to each linear", "[exec]") {
  most_taken = 4;
  const std::vector<std::string> ops = Llama(2).Issued(NotingTable());
  CHECK(std::count(ops.begin(), ops.end(), "row_linear") > 4);
  CHECK(std::none_of(ops.begin(), ops.end(),
                     [](const std::string& name) { return name.starts_with("offered"); }));
}

}  // namespace
}  // namespace millrace
