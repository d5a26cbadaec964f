// millrace doctor --measure FILE: this host as a machine file, in about a minute. The device, its
// kernels and its communicators are what a run would have, so the same code measures a CPU and a
// GPU; under mpirun it measures collectives as well, between as many ranks.
#include "tools/cli/bench/measure_machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iostream>

#include "kernels/ops/cost.h"
#include "runtime/api/backend.h"
#include "runtime/data/file_system.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/cost/machine_file.h"
#include "tools/cli/bench/floor.h"
#include "tools/cli/bench/rates.h"
#include "tools/cli/bench/stopwatch.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

constexpr int kChain = 64;  // small kernels, one after the other

struct Shape3 {
  int64_t m, n, k;
};
// Forward, both gradients and heads of models from GPT-2 124M to Llama 8B; the quickstart's on a
// CPU.
constexpr std::array<Shape3, 14> kDeviceProducts = {{{8192, 8192, 8192},
                                                     {8192, 28672, 4096},
                                                     {8192, 4096, 14336},
                                                     {8192, 6144, 4096},
                                                     {4096, 28672, 8192},
                                                     {16384, 16384, 2048},
                                                     {16384, 2048, 8192},
                                                     {2048, 16384, 16384},
                                                     {65536, 3072, 768},
                                                     {65536, 768, 3072},
                                                     {768, 3072, 65536},
                                                     {8192, 50304, 768},
                                                     {4096, 2304, 768},
                                                     {1024, 1536, 384}}};
constexpr std::array<Shape3, 6> kHostProducts = {{{512, 512, 512},
                                                  {2048, 128, 128},
                                                  {2048, 384, 128},
                                                  {2048, 128, 384},
                                                  {128, 384, 2048},
                                                  {2048, 256, 128}}};

struct Attend {
  int64_t batch, length, heads, kv_heads, head_dim;
};
constexpr std::array<Attend, 5> kDeviceAttention = {{{16, 256, 12, 12, 64},
                                                     {16, 1024, 12, 12, 64},
                                                     {4, 4096, 32, 8, 64},
                                                     {2, 4096, 32, 8, 128},
                                                     {1, 8192, 32, 8, 128}}};
constexpr std::array<Attend, 1> kHostAttention = {{{2, 128, 4, 4, 32}}};

class Measurement {
 public:
  explicit Measurement(RankContext& context, Session& session)
      : context_(context),
        session_(session),
        watch_(session.device()),
        machine_(context.machine),
        on_device_(session.device().captures()),
        compute_(on_device_ ? DType::kBF16 : DType::kF32) {
    bytes_ = session.engine().arena_bytes();
    arena_ = session.engine().BindingOf(session.run().plans.Of("train")).arena;
    FillWithNoise(session.device(), arena_, bytes_, stream());
  }

  Machine Run() {
    Copy();
    Launch();
    Products();
    Attention();
    if (world() > 1)
      Say(MeasureCollectives(session_, context_.environment, Fresh(), watch_, machine_));
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    machine_.name = "measured";
    machine_.title = session_.device().name();
    machine_.measured =
        fmt::format("{}, doctor --measure, {} rank{}", date, world(), world() == 1 ? "" : "s");
    machine_.source = said_ + "not measured, but those of machine " + context_.machine.name +
                      ": peak, tiles, kernels, power, network, device";
    return machine_;
  }

 private:
  Stream& stream() { return session_.engine().stream(StreamId::kCompute); }
  int world() const { return session_.world(); }
  const KernelTable& kernels() const { return *context_.environment.kernels; }
  Backend backend() const { return context_.environment.traits.backend; }
  Cut Fresh() const { return {arena_, bytes_}; }
  void Say(const std::string& text) { said_ += text + "; "; }

  void Copy() {
    const Samples rate =
        Repeated([&] { return CopyRate(watch_, context_.environment, arena_, bytes_, stream()); });
    machine_.memory = rate.median();
    Say("copy " + rate.Text(1e9) + " GB/s");
  }

  // What each of a chain of kernels takes that have next to nothing to do.
  void Launch() {
    Cut cut = Fresh();
    ConcatOp<TensorView> copy;
    copy.x = cut.Take(DType::kF32, {64});
    copy.out = cut.Take(DType::kF32, {64});
    const Samples us = Repeated([&] {
      return watch_.Best(stream(), kChain, true, [&] { kernels().concat(copy, stream()); });
    });
    machine_.op_gap = 0;
    machine_.kernel_start = us.median() * 1e-6;
    Say("a small kernel in a chain " + us.Text(1) + " us");
  }

  // FLOP/s of a product. The power cap is a figure of its own: a step's products run between other
  // work, and so at a higher clock than products alone do for long.
  double Product(const Shape3& p, ProductRun how) {
    Samples rates;
    const int rounds = on_device_ && how == ProductRun::kBurst ? kRounds : 1;
    SustainedRate rate;
    for (int round = 0; round < rounds; ++round) {
      rate = MeasureProduct(session_, context_.environment, watch_, {p.m, p.n, p.k}, compute_, how);
      rates.values.push_back(rate.flops_per_second);
    }
    if (how == ProductRun::kBurst)
      machine_.gemm_shapes.push_back({compute_, rate.m, rate.n, rate.k, rates.median()});
    return rates.median();
  }

  void Products() {
    machine_.gemm_shapes.clear();
    double best = 0;
    const auto measure = [&](const Shape3& p) {
      best = std::max(best, Product(p, ProductRun::kBurst));
    };
    if (on_device_)
      for (const Shape3& p : kDeviceProducts) measure(p);
    else
      for (const Shape3& p : kHostProducts) measure(p);
    Say(fmt::format("{} products, the best of {}", machine_.gemm_shapes.size(),
                    on_device_ ? "bursts of 2 ms" : "five times 20 ms"));
    if (on_device_) {
      machine_.capped_gemm = Product(kDeviceProducts.front(), ProductRun::kHot);
      Say(fmt::format("the first of them hot, for a second: {:.4g} TFLOP/s",
                      machine_.capped_gemm / 1e12));
    } else {
      machine_.gemm_f32 = best;
      machine_.peak_f32 = std::max(machine_.peak_f32, best);
      machine_.gemm_bf16 = std::min(machine_.gemm_bf16, machine_.peak_bf16);
    }
  }

  // Microseconds of forward and backward.
  std::pair<Samples, Samples> Attention(const Attend& a) {
    Cut cut = Fresh();
    AttentionOp<TensorView> forward;
    AttentionGradOp<TensorView> backward;
    const auto wide = [&](int64_t heads) {
      return cut.Take(compute_, {a.batch, a.length, heads, a.head_dim});
    };
    forward.scale = backward.scale = 1 / std::sqrt(static_cast<float>(a.head_dim));
    backward.deterministic = false;
    backward.q = forward.q = wide(a.heads);
    backward.k = forward.k = wide(a.kv_heads);
    backward.v = forward.v = wide(a.kv_heads);
    backward.out = forward.out = wide(a.heads);
    backward.lse = forward.lse = cut.Take(DType::kF32, {a.batch, a.heads, a.length});
    backward.d_out = wide(a.heads);
    backward.d_q = wide(a.heads);
    backward.d_k = wide(a.kv_heads);
    backward.d_v = wide(a.kv_heads);
    const auto scratch = [&](auto& op) {
      using Op = std::remove_reference_t<decltype(op)>;
      const int64_t bytes = WorkspaceBytes(ConvertOp<Bare<Op>::template Of, TensorView, Shape>(
                                               op,
                                               [](const TensorView& view) {
                                                 return Shape{view.layout, view.data != nullptr};
                                               }),
                                           backend());
      if (bytes > 0) op.scratch = cut.Take(DType::kU8, {bytes});
    };
    scratch(forward);
    scratch(backward);
    return {Repeated([&] {
              return watch_.Best(stream(), 0, true,
                                 [&] { kernels().attention(forward, stream()); });
            }),
            Repeated([&] {
              return watch_.Best(stream(), 0, true,
                                 [&] { kernels().attention_grad(backward, stream()); });
            })};
  }

  template <class Op>
  struct Bare;
  template <template <class> class Op, class V>
  struct Bare<Op<V>> {
    template <class W>
    using Of = Op<W>;
  };

  void Attention() {
    machine_.attention.clear();
    const auto measure = [&](const Attend& a) {
      const auto [forward, backward] = Attention(a);
      // 2 and 5 products over the lower triangle.
      const double flops = 4.0 * static_cast<double>(a.batch * a.heads * a.head_dim) *
                           static_cast<double>(a.length * (a.length + 1) / 2);
      machine_.attention.push_back({on_device_ ? a.head_dim : 1 << 20, on_device_ ? a.length : 0,
                                    flops / forward.median() * 1e6,
                                    2.5 * flops / backward.median() * 1e6});
      Say(fmt::format("attention head dim {}, T {}: {} and {} us", a.head_dim, a.length,
                      forward.Text(1), backward.Text(1)));
    };
    if (on_device_)
      for (const Attend& a : kDeviceAttention) measure(a);
    else
      for (const Attend& a : kHostAttention) measure(a);
    machine_.attention_start = 0;
  }

  RankContext& context_;
  Session& session_;
  Stopwatch watch_;
  Machine machine_;
  const bool on_device_;
  const DType compute_;
  std::byte* arena_ = nullptr;
  int64_t bytes_ = 0;
  std::string said_;
};

}  // namespace

int MeasureVerb(const std::string& file) {
  ConfigArguments config;
  // A model whose arena has room for what is measured.
  config.sets = {"data.kind=synthetic", "model.family=llama", "execution.tune=false"};
  if (VisibleGpus() > 0)
    for (const char* set :
         {"model.layers=2", "model.d_model=4096", "model.heads=32", "model.seq_len=4096",
          "model.vocab=32000", "train.micro_batch=4", "precision.compute=bf16",
          "precision.grad_wire=bf16", "execution.peer_memory=auto"})
      config.sets.emplace_back(set);
  else
    for (const char* set : {"model.layers=2", "model.d_model=256", "model.heads=8",
                            "model.seq_len=256", "train.micro_batch=8"})
      config.sets.emplace_back(set);
  return RunOnRanks(config, {"train"}, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {{"train"}, true});
    const Machine machine = Measurement(context, session).Run();
    if (!context.leader()) return 0;
    WriteFileAtomically(FileSystem::Posix(), file, MachineText(machine));
    std::cout << fmt::format("{}: {}\n", file, machine.source);
    return 0;
  });
}

}  // namespace millrace
