// Times the stages of planning a Llama by its layers: how long until a training step is planned and
// proved?
//
//   bazel run -c opt //tools/bench:plan_time -- [--layers 128,1000,4000] [--accumulate 1,16]
//   [--shard N] [--allocator packed] [--reshard after_forward] [--repeat N] [--auto LAYERS]
//
// Prints milliseconds of processor time per stage, the best of the repeats, on one core:
//   layout, graph, gradients, lower   PlanShards, EmitForward, AddGradients, Lower
//   plan      PlanStep; of that `pool` places the buffers and `edges` derives the waits, each run
//             once more by itself on the finished plan
//   proof     CheckPlan
// and how many bytes the arena is above its lower bound. With --auto also what the searches cost:
// recompute=auto and reshard=auto within a budget halfway between the least and the most.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/pool/allocator.h"
#include "runtime/plan/schedule/edges.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/plan/schedule/recompute.h"

namespace millrace {
namespace {

// Processor time of this thread: a busy machine disturbs it less than the wall clock.
double ThreadMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

struct Case {
  int64_t layers = 128;
  int accumulate = 1, shard = 8;
  AllocatorKind allocator = AllocatorKind::kPacked;
  Reshard reshard = Reshard::kAfterForward;
};

constexpr PrecisionPolicy kPrecision = {DType::kBF16, DType::kBF16, DType::kF32, DType::kBF16};
constexpr BatchShape kShape = {.batch = 1, .seq = 2048};

// The widths of Llama 3.2 1B.
ModelOptions LlamaOf(int64_t layers) {
  ModelOptions o;
  o.family = Name(ModelFamily::kLlama);
  o.d_model = 2048;
  o.blocks = EqualBlocks(layers, {.heads = 32, .kv_heads = 8, .head_dim = 64},
                         {.width = 8192, .activation = ActivationKind::kSwiglu});
  o.vocab = 128256;
  o.seq_len = kShape.seq;
  o.tied = false;
  o.rope_theta = 500000;
  return o;
}

PlanOptions OptionsOf(const Case& c) {
  PlanOptions o;
  o.shape = kShape;
  o.accumulate = c.accumulate;
  o.allocator = c.allocator;
  o.reshard = c.reshard;
  o.backend = Backend::kCuda;
  o.clip = 1;
  return o;
}

SemanticGraph ForwardOf(const Model& model) {
  ForwardBuilder builder(model.spec(), kShape, kPrecision.compute, kPrecision.norm_params);
  model.EmitForward(builder, HeadMode::kTrainLoss);
  return std::move(builder).Finish();
}

StepPlan Planned(const ShardLayout& layout, const Program& program, const PlanOptions& options) {
  return PlanStep(layout, PlanStates(layout, options, {&program}), program, options, "train");
}

// What PlanPool was given for the finished plan.
std::vector<Item> ItemsOf(const StepPlan& plan) {
  std::vector<Item> items;
  std::map<int32_t, size_t> groups;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (IsState(buffer.scope) || buffer.live.empty()) continue;
    if (buffer.group >= 0) {
      const auto [it, fresh] = groups.try_emplace(buffer.group, items.size());
      if (!fresh) {
        std::vector<Interval>& live = items[it->second].intervals;
        live.insert(live.end(), buffer.live.begin(), buffer.live.end());
        std::sort(live.begin(), live.end(),
                  [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
        continue;
      }
    }
    items.push_back({buffer.name, buffer.bytes, buffer.live, buffer.group, DType::kBF16});
  }
  return items;
}

// Milliseconds by stage, in the order of the columns.
struct Times {
  double layout = 0, graph = 0, gradients = 0, lower = 0, plan = 0, pool = 0, edges = 0, proof = 0;
  double total() const { return layout + graph + gradients + lower + plan + proof; }
};

template <class F>
auto Timed(double& milliseconds, F&& f) {
  const double begin = ThreadMilliseconds();
  auto result = f();
  milliseconds = ThreadMilliseconds() - begin;
  return result;
}

void PrintRow(const Case& c, int repeat) {
  Times best;
  int64_t above = 0, arena = 0;
  size_t ops = 0;
  for (int r = 0; r < repeat; ++r) {
    Times t;
    const Mesh mesh(1, c.shard);
    const std::unique_ptr<Model> model = MakeModel(LlamaOf(c.layers));
    const ShardLayout layout =
        Timed(t.layout, [&] { return PlanShards(model->spec(), mesh, kPrecision); });
    SemanticGraph graph = Timed(t.graph, [&] { return ForwardOf(*model); });
    graph = Timed(t.gradients, [&] { return AddGradients(std::move(graph), Recompute::kNone); });
    LowerOptions lower;
    lower.backend = Backend::kCuda;
    const Program program = Timed(t.lower, [&] { return Lower(graph, lower); });
    StepPlan plan = Timed(t.plan, [&] { return Planned(layout, program, OptionsOf(c)); });
    Timed(t.proof, [&] {
      CheckPlan(plan, mesh, c.accumulate);
      return 0;
    });
    const std::vector<Item> items = ItemsOf(plan);
    Timed(t.pool, [&] { return PlanPool(items, {.kind = c.allocator, .slots = 4}); });
    Timed(t.edges, [&] {
      DeriveEdges(plan, mesh, c.accumulate);
      return 0;
    });
    above = plan.arena_bytes - plan.lower_bound;
    arena = plan.arena_bytes;
    ops = 0;
    for (const Body& body : plan.bodies) ops += body.ops.size();
    if (r == 0 || t.total() < best.total()) best = t;
  }
  std::printf(
      "%6lld %10d %8zu %7.1f %7.1f %9.1f %7.1f %8.1f %8.1f %7.1f %8.1f %9.1f %12lld %8.4f\n",
      static_cast<long long>(c.layers), c.accumulate, ops, best.layout, best.graph, best.gradients,
      best.lower, best.plan, best.pool, best.edges, best.proof, best.total(),
      static_cast<long long>(above), 100 * static_cast<double>(above) / static_cast<double>(arena));
  std::fflush(stdout);
}

void PrintSearches(int64_t layers, int accumulate, int repeat) {
  const Case c{.layers = layers, .accumulate = accumulate};
  const std::unique_ptr<Model> model = MakeModel(LlamaOf(layers));
  const ShardLayout layout = PlanShards(model->spec(), {1, c.shard}, kPrecision);
  const SemanticGraph forward = ForwardOf(*model);
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  const auto arena = [&](Recompute policy, Reshard reshard) {
    PlanOptions options = OptionsOf(c);
    options.reshard = reshard;
    return Planned(layout, Lower(AddGradients(forward, policy), lower), options).arena_bytes;
  };
  const int64_t none = arena(Recompute::kNone, Reshard::kAfterForward),
                norms = arena(Recompute::kNorms, Reshard::kAfterForward),
                never = arena(Recompute::kNone, Reshard::kNever);
  double recompute = 0, reshard = 0;
  std::string chosen, kept;
  for (int r = 0; r < repeat; ++r) {
    double now = 0;
    PlanOptions options = OptionsOf(c);
    options.budget_bytes = (none + norms) / 2;
    const Program constants = Lower(forward, lower);
    const StateLayout states = PlanStates(layout, options, {&constants});
    const RecomputeChoice choice = Timed(now, [&] {
      return ChooseRecompute({layout, states, forward, lower, options, 0});
    });
    chosen = ToString(choice.counts);
    recompute = r == 0 ? now : std::min(recompute, now);
    options.reshard = Reshard::kAuto;
    options.budget_bytes = (none + never) / 2;
    const Program program = Lower(AddGradients(forward, Recompute::kNone), lower);
    const StepPlan plan = Timed(now, [&] { return Planned(layout, program, options); });
    kept = plan.notes.back();
    reshard = r == 0 ? now : std::min(reshard, now);
  }
  std::printf("%6lld %10d  recompute=auto %9.1f ms (%s)   reshard=auto %9.1f ms (%s)\n",
              static_cast<long long>(layers), accumulate, recompute, chosen.c_str(), reshard,
              kept.c_str());
}

int Main(int argc, char** argv) {
  std::vector<int64_t> layers = {128, 1000, 4000}, searched;
  std::vector<int> accumulate = {1, 16};
  Case c;
  int repeat = 3;
  CLI::App app("times the stages of planning");
  app.add_option("--layers", layers, "blocks of the model")->delimiter(',');
  app.add_option("--accumulate", accumulate, "microbatches of a step")->delimiter(',');
  app.add_option("--shard", c.shard, "ranks");
  app.add_option("--repeat", repeat, "runs of each row")->check(CLI::PositiveNumber);
  app.add_option("--auto", searched, "blocks of the models that recompute and reshard search")
      ->delimiter(',');
  const std::map<std::string, AllocatorKind> allocators = {
      {"dynamic", AllocatorKind::kDynamic},   {"persistent", AllocatorKind::kPersistent},
      {"fixed", AllocatorKind::kFixed},       {"max_pool", AllocatorKind::kMaxPool},
      {"coloured", AllocatorKind::kColoured}, {"packed", AllocatorKind::kPacked}};
  app.add_option("--allocator", c.allocator, "how buffers are placed")
      ->transform(CLI::CheckedTransformer(allocators));
  const std::map<std::string, Reshard> reshards = {{"never", Reshard::kNever},
                                                   {"after_backward", Reshard::kAfterBackward},
                                                   {"after_forward", Reshard::kAfterForward}};
  app.add_option("--reshard", c.reshard, "after which gathered weights are dropped")
      ->transform(CLI::CheckedTransformer(reshards));
  CLI11_PARSE(app, argc, argv);

  if (!layers.empty() && layers.front() > 0)
    std::printf("%6s %10s %8s %7s %7s %9s %7s %8s %8s %7s %8s %9s %12s %8s\n", "layers",
                "accumulate", "ops", "layout", "graph", "gradients", "lower", "plan", "(pool)",
                "(edges)", "proof", "total ms", "above bound", "percent");
  for (const int64_t l : layers)
    for (const int a : accumulate) {
      if (l <= 0) continue;
      c.layers = l;
      c.accumulate = a;
      PrintRow(c, repeat);
    }
  for (const int64_t l : searched)
    for (const int a : accumulate) PrintSearches(l, a, repeat);
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::Main(argc, argv); }
