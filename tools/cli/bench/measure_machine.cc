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
#include "runtime/base/counted.h"
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
constexpr int64_t kChainRows = 512, kChainColumns = 2048;

// The quickstart's.
constexpr std::array<ProductShape, 6> kHostProducts = {{{512, 512, 512},
                                                        {2048, 128, 128},
                                                        {2048, 384, 128},
                                                        {2048, 128, 384},
                                                        {128, 384, 2048},
                                                        {2048, 256, 128}}};

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
  }

  Machine Run() {
    FillWithNoise(session_.device(), arena_, bytes_, stream());
    Copy();
    Launch();
    ProductRates();
    Attention();
    if (world() > 1)
      Say(MeasureCollectives(session_, context_.environment, Fresh(), watch_, machine_));
    if (on_device_) Say(MeasurePower(session_, context_.environment, Fresh(), watch_, machine_));
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    machine_.name = "measured";
    machine_.title = session_.device().name();
    machine_.measured = fmt::format("{}, doctor --measure, {}", date, Counted(world(), "rank"));
    machine_.source = said_ + "not measured, but those of machine " + context_.machine.name +
                      (on_device_ ? ": peak, tiles, kernels, collectives beside kernels, "
                                    "network, device"
                                  : ": peak, tiles, kernels, power, network, device");
    return machine_;
  }

 private:
  Stream& stream() { return session_.engine().stream(StreamId::kCompute); }
  int world() const { return session_.world(); }
  const KernelTable& kernels() const { return *context_.environment.kernels; }
  Backend backend() const { return context_.environment.traits.backend; }
  // Of noise: what was measured before has written there, and sums of sums are infinite before
  // long. Products of such numbers draw less power, and so took less time under its cap.
  Cut Fresh() {
    FillWithNoise(session_.device(), arena_, bytes_, stream());
    return {arena_, bytes_};
  }
  void Say(const std::string& text) { said_ += text + "; "; }

  void Copy() {
    const Samples rate =
        Repeated([&] { return CopyRate(watch_, context_.environment, arena_, bytes_, stream()); });
    machine_.memory = -Slowest(session_, -rate.median());
    Say("copy " + rate.Text(1e9) + " GB/s");
  }

  // What kernels of a chain take beside their bytes: with next to nothing to do, and with rows for
  // every unit, as a small model's have. The rows stay in a cache, as they do there.
  void Launch() {
    const auto time = [&](auto&& call) {
      return Repeated([&] { return watch_.Best(stream(), kChain, true, call); });
    };
    Cut cut = Fresh();
    ConcatOp<TensorView> copy;
    copy.x = cut.Take(DType::kF32, {64});
    copy.out = cut.Take(DType::kF32, {64});
    const Samples tiny = time([&] { kernels().concat(copy, stream()); });
    machine_.op_gap = 0;
    machine_.kernel_start = tiny.median() * 1e-6;
    Say("a small kernel in a chain " + tiny.Text(1) + " us");
    if (!on_device_) return;
    NormOp<TensorView> norm;
    norm.kind = NormKind::kRms;
    norm.x = cut.Take(compute_, {kChainRows, kChainColumns});
    norm.out = cut.Take(compute_, {kChainRows, kChainColumns});
    norm.weight = cut.Take(compute_, {kChainColumns});
    norm.rstd = cut.Take(DType::kF32, {kChainRows});
    ActivationOp<TensorView> activation;
    activation.kind = ActivationKind::kSwiglu;
    activation.x = norm.out;
    activation.out = cut.Take(compute_, {kChainRows, kChainColumns / 2});
    copy.x = {norm.x.data, DenseLayout(DType::kF32, {kChainRows * kChainColumns / 2})};
    copy.out = {norm.out.data, copy.x.layout};
    const double of_rows = static_cast<double>(kChainRows * kChainColumns * Bytes(compute_));
    double sum = 0;
    const auto add = [&](const char* name, double bytes, const Samples& us) {
      sum += std::max(us.median() - bytes / machine_.memory * 1e6, tiny.median());
      Say(fmt::format("{} of {} x {} {} us", name, kChainRows, kChainColumns, us.Text(1)));
    };
    add("a norm", 2 * of_rows, time([&] { kernels().norm(norm, stream()); }));
    add("SwiGLU", 1.5 * of_rows, time([&] { kernels().activation(activation, stream()); }));
    add("a copy", 2 * of_rows, time([&] { kernels().concat(copy, stream()); }));
    machine_.op_gap = machine_.kernel_start;
    machine_.kernel_start = Slowest(session_, sum * 1e-6 / 3) - machine_.op_gap;
  }

  // Seconds of a call without what any kernel of a plan is given, a start and a gap; the slowest
  // rank's.
  double Work(double seconds) {
    const double without = seconds - machine_.op_gap - machine_.kernel_start;
    return Slowest(session_, std::max(without, seconds / 2));
  }

  // The power cap is a figure of its own: a step's products run between other work, and so at a
  // higher clock than products alone do for long.
  void ProductRates() {
    machine_.gemm_shapes.clear();
    const auto add = [&](const ProductShape& p, double seconds) {
      const double flops =
          2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
      machine_.gemm_shapes.push_back({compute_, p.m, p.n, p.k, flops / Work(seconds)});
      return machine_.gemm_shapes.back().flops;
    };
    if (on_device_) {
      Cut cut = Fresh();
      const Products products(kDeviceProducts, compute_, backend(), cut);
      for (size_t i = 0; i < kDeviceProducts.size(); ++i) {
        const Samples us = Repeated([&] {
          return watch_.Best(stream(), 0, true,
                             [&] { kernels().matmul(products.op(i), stream()); });
        });
        add(kDeviceProducts[i], us.median() * 1e-6);
      }
      Say(fmt::format("{} products in bursts of 2 ms", machine_.gemm_shapes.size()));
      return;
    }
    double best = 0;
    for (const ProductShape& p : kHostProducts) {
      const SustainedRate rate =
          MeasureProduct(session_, context_.environment, watch_, p, compute_);
      best = std::max(best, add({rate.m, rate.n, rate.k},
                                2.0 * static_cast<double>(rate.m) * static_cast<double>(rate.n) *
                                    static_cast<double>(rate.k) / rate.flops_per_second));
    }
    Say(fmt::format("{} products, the best of five times 20 ms", machine_.gemm_shapes.size()));
    machine_.gemm_f32 = best;
    machine_.peak_f32 = std::max(machine_.peak_f32, best);
    machine_.gemm_bf16 = std::min(machine_.gemm_bf16, machine_.peak_bf16);
  }

  void Attention() {
    machine_.attention.clear();
    const auto measure = [&](const Attend& a) {
      Cut cut = Fresh();
      const AttentionCalls calls(a, compute_, backend(), cut);
      const auto time = [&](auto&& call) {
        return Repeated([&] { return watch_.Best(stream(), 0, true, call); });
      };
      const Samples forward = time([&] { kernels().attention(calls.forward, stream()); });
      const Samples backward = time([&] { kernels().attention_grad(calls.backward, stream()); });
      const auto seconds = [&](const Samples& us) { return Work(us.median() * 1e-6); };
      machine_.attention.push_back({on_device_ ? a.head_dim : 1 << 20, on_device_ ? a.length : 0,
                                    calls.forward_flops() / seconds(forward),
                                    2.5 * calls.forward_flops() / seconds(backward)});
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
