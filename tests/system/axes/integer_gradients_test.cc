// The sharding half of real plans on integer gradients, where every sum is exact: concat,
// wire casts, reduce-scatter, accumulation, the outer reduction, norm, clip and update must
// then give one result, bit for bit, whatever the mesh, the accumulation, the
// synchronisation and the encodings.
//
// The model's kernels do nothing here. In their place an observer of the executor writes, wherever
// the plan says that an op writes or accumulates a parameter's gradient, the sum over the
// microbatch's samples of an integer that encodes parameter, element, sample and contribution.
// Integers up to 256 are exact in bf16.
//
// On whatever TestRanks are: GPUs give the bits of the CPU, over NCCL and over peers' memory.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/executor.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

constexpr int64_t kGlobalBatch = 12, kSteps = 2;

// In [-3, 3], well mixed.
int64_t Contribution(int64_t param, int64_t element, int64_t sample, int64_t nth) {
  uint64_t z = static_cast<uint64_t>(((param * 1000003 + element) * 1009 + sample) * 2 + nth) *
               0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9ull;
  return static_cast<int64_t>((z >> 40) % 7) - 3;
}
int64_t LossOf(int64_t sample) { return 20 + sample % 7; }

// A tied table gets two gradients per microbatch, everything else one.
int64_t Contributions(const AssembledRun& run, const ParamPlacement& param) {
  const bool table = param.spec.name == "embed/wte" || param.spec.name == "embed.weight";
  const ParamPlacement& last = run.layout.params.back();
  return table && last.spec.name != "lm_head.weight" ? 2 : 1;
}

int64_t ExpectedGradient(const AssembledRun& run, size_t param, int64_t element, int64_t step) {
  int64_t sum = 0;
  for (int64_t s = step * kGlobalBatch; s < (step + 1) * kGlobalBatch; ++s)
    for (int64_t nth = 0; nth < Contributions(run, run.layout.params[param]); ++nth)
      sum += Contribution(static_cast<int64_t>(param), element, s, nth);
  return sum;
}

template <template <class> class Op>
void Nothing(const Op<TensorView>&, Stream&) {}

KernelTable WithoutModel(KernelTable table) {
  table.embed = Nothing<EmbedOp>;
  table.embed_grad = Nothing<EmbedGradOp>;
  table.norm = Nothing<NormOp>;
  table.norm_grad = Nothing<NormGradOp>;
  table.norm_sums = Nothing<NormSumsOp>;
  table.matmul = Nothing<MatmulOp>;
  table.column_sum = Nothing<ColumnSumOp>;
  table.rope = Nothing<RopeOp>;
  table.attention = Nothing<AttentionOp>;
  table.attention_grad = Nothing<AttentionGradOp>;
  table.add = Nothing<AddOp>;
  table.add_bias = Nothing<AddBiasOp>;
  table.activation = Nothing<ActivationOp>;
  table.activation_grad = Nothing<ActivationGradOp>;
  table.cross_entropy = Nothing<CrossEntropyOp>;
  return table;
}

float Get(const TensorView& view, int64_t element) {
  return view.dtype() == DType::kF32 ? view.as<float>()[element]
                                     : ToFloat(view.as<BFloat16>()[element]);
}
void Put(const TensorView& view, int64_t element, float value) {
  if (view.dtype() == DType::kF32)
    view.as<float>()[element] = value;
  else
    view.as<BFloat16>()[element] = ToBFloat16(value);
}

// Memory of a device that does nothing meanwhile, by copies on the host.
class Memory {
 public:
  explicit Memory(Device& device)
      : device_(device), stream_(device.MakeStream(StreamRole::kCompute)) {}

  // The view's bytes, and a view of them.
  struct Copy {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  Copy Read(const TensorView& view) {
    Copy copy{std::vector<std::byte>(static_cast<size_t>(view.layout.span_bytes())), view};
    device_.CopyToHost(copy.bytes.data(), view.data, view.layout.span_bytes(), *stream_);
    copy.view.data = copy.bytes.data();
    return copy;
  }
  void Write(const TensorView& view, const Copy& copy) {
    device_.CopyFromHost(view.data, copy.bytes.data(), view.layout.span_bytes(), *stream_);
  }
  void Fill(std::byte* data, std::byte value, int64_t bytes) {
    device_.EnqueueFill(data, value, bytes, *stream_);
    stream_->Sync();
  }

 private:
  Device& device_;
  const std::unique_ptr<Stream> stream_;
};

// The executor waits for the device after each op, so between ops memory is still.
class IntegerModel final : public OpObserver {
 public:
  IntegerModel(const AssembledRun& run, const Config& config, int world, const Binding& binding,
               Memory& memory)
      : run_(run), config_(config), world_(world), binding_(binding), memory_(memory) {}

  int64_t step = 0;
  std::vector<std::vector<float>> gradients;  // by FlatId: the shard that AdamW is given

  void BeginRun(const StepPlan&) override { gradients.assign(run_.layout.flats.size(), {}); }
  void EndRun() override {}

  void Before(const PlanOp& op, int64_t position, int microbatch) override {
    const auto* adamw = std::get_if<AdamWOp<View>>(&op.op);
    if (adamw == nullptr) return;
    const Memory::Copy copy = memory_.Read(BindView(binding_, adamw->grad, position, microbatch));
    const TensorView& grad = copy.view;
    for (size_t f = 0; f < gradients.size(); ++f) {
      if (run_.plans.states.tensor(adamw->master.buffer).flat.value != static_cast<int32_t>(f))
        continue;
      for (int64_t i = 0; i < grad.numel(); ++i) gradients[f].push_back(Get(grad, i));
    }
  }

  void After(const PlanOp& op, int64_t position, int microbatch) override {
    if (std::holds_alternative<CrossEntropyOp<View>>(op.op)) {
      const auto& entropy = std::get<CrossEntropyOp<View>>(op.op);
      const TensorView bound = BindView(binding_, entropy.loss_sum, position, microbatch);
      const Memory::Copy copy = memory_.Read(bound);
      double& sum = *copy.view.as<double>();
      if (entropy.loss_update == Update::kOverwrite) sum = 0;
      ForSamples(microbatch, [&](int64_t sample) { sum += static_cast<double>(LossOf(sample)); });
      memory_.Write(bound, copy);
    }
    const bool embed = std::holds_alternative<EmbedGradOp<View>>(op.op);
    if (!embed && !std::holds_alternative<MatmulOp<View>>(op.op) &&
        !std::holds_alternative<NormSumsOp<View>>(op.op) &&
        !std::holds_alternative<ColumnSumOp<View>>(op.op))
      return;
    ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
      if (access == Access::kWrite || access == Access::kAccumulate)
        Write(view, access, embed, position, microbatch);
    });
  }

 private:
  template <class F>
  void ForSamples(int microbatch, F&& f) const {
    const int64_t rows = config_.train.micro_batch;
    for (int64_t r = 0; r < rows; ++r)
      f(step * kGlobalBatch + (microbatch * world_ + binding_.rank) * rows + r);
  }

  // The parameter whose gradient `view` is, and its first element in the view's buffer; -1: none.
  std::pair<int64_t, int64_t> ParamOf(const View& view) const {
    const std::string& name = binding_.plan->buffer(view.buffer).name;
    for (size_t p = 0; p < run_.layout.params.size(); ++p) {
      const ParamPlacement& param = run_.layout.params[p];
      if (name == "grad_part/" + param.spec.name) return {p, 0};
      const bool inside = param.begin <= view.offset && view.offset < param.end;
      if (name == "grad/" + run_.layout.flat(param.flat).name && inside) return {p, param.begin};
    }
    return {-1, 0};
  }

  void Write(const View& view, Access access, bool embed, int64_t position, int microbatch) {
    const auto [param, begin] = ParamOf(view);
    if (param < 0) return;
    const ParamPlacement& placement = run_.layout.params[static_cast<size_t>(param)];
    const int64_t nth = embed && Contributions(run_, placement) == 2 ? 1 : 0;
    const TensorView on_device = BindView(binding_, view, position, microbatch);
    const Memory::Copy copy = memory_.Read(on_device);
    const TensorView& bound = copy.view;
    const Layout& l = view.layout;
    const int64_t rows = l.rank == 2 ? l.dims[0] : 1, columns = l.dims[l.rank - 1];
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = (l.rank == 2 ? i * l.strides[0] : 0) + j * l.strides[l.rank - 1];
        const int64_t element = view.offset - begin + at;
        int64_t sum = 0;
        if (element < placement.spec.numel())
          ForSamples(microbatch,
                     [&](int64_t sample) { sum += Contribution(param, element, sample, nth); });
        const float old = access == Access::kAccumulate ? Get(bound, at) : 0.0f;
        Put(bound, at, old + static_cast<float>(sum));
      }
    }
    memory_.Write(on_device, copy);
  }

  const AssembledRun& run_;
  const Config& config_;
  const int world_;
  const Binding binding_;
  Memory& memory_;
};

struct Result {
  std::vector<std::vector<std::vector<float>>> gradients;  // by step, parameter: logical elements
  std::vector<StepScalars> scalars;
  std::vector<std::vector<float>> masters;  // by parameter
  bool gaps_zero = true;                    // of gradients, masters and moments
};

TensorView StateOf(const Binding& binding, const View& view) {
  return BindView(binding, view, 0, 0);
}

// Moves the logical elements of a shard into full[param], and sees that everything else is zero.
void Scatter(const ShardLayout& layout, size_t f, int shard_rank, const TensorView& shard,
             std::vector<std::vector<float>>& full, bool& gaps_zero) {
  const FlatParam& flat = layout.flats[f];
  const int64_t begin = shard_rank * flat.shard_numel;
  std::vector<bool> logical(static_cast<size_t>(flat.shard_numel));
  for (const ParamId id : flat.params) {
    const ParamPlacement& param = layout.param(id);
    std::vector<float>& values = full[static_cast<size_t>(id.value)];
    values.resize(static_cast<size_t>(param.spec.numel()));
    for (int64_t i = 0; i < param.spec.numel(); ++i) {
      const int64_t at = param.begin + i - begin;
      if (at < 0 || at >= flat.shard_numel) continue;
      values[static_cast<size_t>(i)] = Get(shard, at);
      logical[static_cast<size_t>(at)] = true;
    }
  }
  for (int64_t i = 0; i < flat.shard_numel; ++i)
    gaps_zero &= logical[static_cast<size_t>(i)] || Get(shard, i) == 0.0f;
}

AssembledRun TrainOnly(const Trial& trial) {
  return Assemble(trial.config, trial.world, TestRanks().Traits(trial.world), {"train"});
}

void WriteScalars(Memory& memory, const TensorView& at, const StepScalars& scalars) {
  Memory::Copy copy = memory.Read(at);
  *copy.view.as<StepScalars>() = scalars;
  memory.Write(at, copy);
}

// One rank: kSteps steps in an arena that holds NaN wherever nobody writes. `mutex` guards result.
void RunRank(const RankSetup& setup, const Trial& trial, const AssembledRun& run, Result& result,
             std::mutex& mutex) {
  const StepPlan& plan = run.plans.Of("train");
  const StateLayout& states = run.plans.states;
  const auto view_of = [&](std::string_view slot, size_t f) {
    return states.ViewOf(states.Slot(slot, FlatId{static_cast<int32_t>(f)}));
  };
  const KernelTable kernels = WithoutModel(setup.kernels);
  CommSet comms(setup.comms, run.layout.mesh, CommSharing::kSeparate, CommSpecsOf(run.plans.All()));
  Memory memory(setup.device);
  const std::unique_ptr<DeviceBuffer> arena =
      comms.AllocateArena(setup.device, plan.arena_bytes, "arena");
  comms.RegisterMemory(arena->data(), plan.arena_bytes);
  comms.Connect();
  memory.Fill(arena->data(), std::byte{0xff}, plan.arena_bytes);
  const int rank = setup.comms.rank(), shard_rank = comms.mesh().Index(rank, Axis::kShard);
  const Binding binding{&plan, arena->data(), comms.mesh(), rank};
  for (const auto& [slot, flat] : SavedSlots(run.layout)) {
    const TensorView state = StateOf(binding, view_of(slot.name, static_cast<size_t>(flat.value)));
    memory.Fill(state.data, std::byte{0}, state.bytes());
  }
  const TensorView at = StateOf(binding, states.ViewOf(states.Of("scalars")));
  StepScalars scalars = {};
  scalars.inject_grad_unit = -1;
  WriteScalars(memory, at, scalars);
  {
    Executor executor({&setup.device, &kernels, &comms});
    executor.Run(binding, plan.prologue, nullptr);
    executor.Sync();
    IntegerModel model(run, trial.config, trial.world, binding, memory);
    for (int64_t step = 0; step < kSteps; ++step) {
      model.step = scalars.step = step;
      scalars.inv_valid_tokens = 1.0 / static_cast<double>(kGlobalBatch);
      WriteScalars(memory, at, scalars);
      executor.Run(binding, plan.schedule, &model);
      executor.Sync();
      scalars = *memory.Read(at).view.as<StepScalars>();
      const std::lock_guard lock(mutex);
      for (size_t f = 0; f < run.layout.flats.size(); ++f) {
        std::vector<float>& shard = model.gradients[f];
        const TensorView view{reinterpret_cast<std::byte*>(shard.data()),
                              DenseLayout(DType::kF32, {static_cast<int64_t>(shard.size())})};
        Scatter(run.layout, f, shard_rank, view, result.gradients[static_cast<size_t>(step)],
                result.gaps_zero);
      }
      if (rank == 0) result.scalars.push_back(scalars);
    }
  }
  {
    const std::lock_guard lock(mutex);
    std::vector<std::vector<float>> moments(run.layout.params.size());
    for (size_t f = 0; f < run.layout.flats.size(); ++f) {
      const auto scatter = [&](const View& view, std::vector<std::vector<float>>& full) {
        Scatter(run.layout, f, shard_rank, memory.Read(StateOf(binding, view)).view, full,
                result.gaps_zero);
      };
      scatter(view_of("master", f), result.masters);
      scatter(view_of("adam_m", f), moments);
      scatter(view_of("adam_v", f), moments);
    }
  }
  comms.world().Barrier();  // GPUs: nobody frees what a rank beside it may still use
  comms.UnregisterMemory(arena->data());
}

Result Run(const Trial& trial) {
  const AssembledRun run = TrainOnly(trial);
  Result result;
  result.gradients.assign(kSteps, std::vector<std::vector<float>>(run.layout.params.size()));
  result.masters.resize(run.layout.params.size());
  std::mutex mutex;
  TestRanks().Run(trial.world,
                  [&](const RankSetup& setup) { RunRank(setup, trial, run, result, mutex); });
  return result;
}

Result OnHost(const Trial& trial) {
  std::unique_ptr<Ranks> before = UseRanks(MakeHostRanks());
  Result result = Run(trial);
  UseRanks(std::move(before));
  return result;
}

// Against the sums themselves.
void RequireExact(const Trial& trial, const Result& result) {
  const AssembledRun run = TrainOnly(trial);
  REQUIRE(result.gaps_zero);
  for (int64_t step = 0; step < kSteps; ++step) {
    INFO("step " << step);
    double squares = 0, loss = 0;
    for (size_t p = 0; p < run.layout.params.size(); ++p) {
      INFO(run.layout.params[p].spec.name);
      const std::vector<float>& got = result.gradients[static_cast<size_t>(step)][p];
      REQUIRE(static_cast<int64_t>(got.size()) == run.layout.params[p].spec.numel());
      int64_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const int64_t expected = ExpectedGradient(run, p, static_cast<int64_t>(i), step);
        wrong += got[i] != static_cast<float>(expected);
        squares += static_cast<double>(expected * expected);
      }
      REQUIRE(wrong == 0);
    }
    for (int64_t s = step * kGlobalBatch; s < (step + 1) * kGlobalBatch; ++s)
      loss += static_cast<double>(LossOf(s));
    const StepScalars& scalars = result.scalars[static_cast<size_t>(step)];
    REQUIRE(scalars.applied == 1);
    REQUIRE(scalars.grad_norm == std::sqrt(squares));
    REQUIRE(scalars.loss == loss * (1.0 / static_cast<double>(kGlobalBatch)));
  }
}

// Trials with one global batch: every mesh of 1 to 4 ranks, every accumulation.
std::vector<Trial> Trials(ModelConfig::Family family, bool tied) {
  using Concat = ShardingConfig::GradConcat;
  using Sync = ShardingConfig::GradSync;
  using Format = PrecisionConfig::Format;
  std::vector<Trial> trials;
  for (const auto& [replicate, shard] :
       {std::pair{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {1, 4}, {2, 2}, {4, 1}})
    for (const int64_t accumulate : {1, 2, 3, 4})
      for (const Sync sync : {Sync::kEvery, Sync::kLast})
        for (const Concat concat : {Concat::kEvery, Concat::kLast, Concat::kDirect})
          for (const Format sums : {Format::kFp32, Format::kBf16})
            for (const Format wire : {Format::kFp32, Format::kBf16}) {
              Trial trial;
              trial.world = replicate * shard;
              if (kGlobalBatch % (trial.world * accumulate) != 0) continue;
              // Joining NCCL takes a second per trial.
              if (TestRanks().captures() && trial.world > 1 &&
                  accumulate != (trial.world == 3 ? 2 : 3))
                continue;
              Config& config = trial.config = TinyConfig(family);
              config.model.layers = 2;
              config.model.tied = tied;
              config.parallel.replicate = replicate;
              config.train.accumulate = accumulate;
              config.train.micro_batch = kGlobalBatch / (trial.world * accumulate);
              config.sharding.grad_sync = sync;
              config.sharding.grad_concat = concat;
              config.precision.grad_accumulate = sums;
              config.precision.grad_wire = wire;
              if (Valid(trial)) trials.push_back(trial);
            }
  return trials;
}

// All trials of `world` ranks have the masters of one rank on the CPU.
void CheckAll(ModelConfig::Family family, bool tied, int world) {
  if (!HaveDevices(world)) return;
  const std::vector<Trial> trials = Trials(family, tied);
  REQUIRE(trials.front().world == 1);
  const Result reference = OnHost(trials.front());
  for (const Trial& trial : trials) {
    if (trial.world != world) continue;
    const Config& c = trial.config;
    INFO(fmt::format(
        "replicate {} shard {} accumulate {} sync {} concat {} sums {} wire {}",
        c.parallel.replicate, ShardAxis(trial), *c.train.accumulate,
        static_cast<int>(c.sharding.grad_sync), static_cast<int>(c.sharding.grad_concat),
        static_cast<int>(c.precision.grad_accumulate), static_cast<int>(c.precision.grad_wire)));
    const Result result = Run(trial);
    RequireExact(trial, result);
    REQUIRE(result.masters == reference.masters);
  }
}

TEST_CASE(
    "integer gradients, gpt2 tied: one result for every mesh, accumulation, synchronisation and "
    "encoding") {
  CheckAll(ModelConfig::Family::kGpt2, true, GENERATE(1, 2, 3, 4));
}

TEST_CASE(
    "integer gradients, llama untied: one result for every mesh, accumulation, synchronisation and "
    "encoding") {
  CheckAll(ModelConfig::Family::kLlama, false, GENERATE(1, 2, 3, 4));
}

}  // namespace
}  // namespace millrace::test
