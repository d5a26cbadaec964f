// Learning rate, norm, clip and AdamW against a trajectory in double that is written here.
//
// The oracle is fed exact f32 gradients: a second engine, the probe, takes the weights of the run
// before each step and makes the same step with beta1 = 0, no clipping and learning rate 0, so that
// its first moment is the gradient and its weights stay.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "comm/host_collectives.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

Tensors Read(Engine& engine, std::string_view kind) {
  Tensors tensors;
  ForEachLogicalTensor(engine, kind,
                       [&](const ParamPlacement& param, std::span<const float> values) {
                         tensors[param.spec.name].assign(values.begin(), values.end());
                       });
  return tensors;
}

struct Snapshot {
  StepScalars scalars;
  Tensors before, gradient, master, m, v;
};

std::vector<Snapshot> Trajectory(const Trial& trial) {
  Config probe_config = trial.config;
  probe_config.optimizer.betas[0] = 0;
  probe_config.optimizer.lr = probe_config.optimizer.schedule.min_lr = 0;
  probe_config.optimizer.clip = 0;
  const BackendTraits traits{Backend::kCpu, ScratchBytes(trial.world)};
  const AssembledRun run = Assemble(trial.config, trial.world, traits, {"train"});
  const AssembledRun probe_run = Assemble(probe_config, trial.world, traits, {"train"});
  std::vector<Snapshot> snapshots;
  LocalWorld world(trial.world, {.timeout = std::chrono::seconds(60)});
  RunRanks(world, [&](CommFactory& factory) {
    const Mesh& mesh = run.layout.mesh;
    CommSet comms(factory, mesh, CommSharing::kSeparate, CommSpecsOf(run.plans.All())),
        probe_comms(factory, mesh, CommSharing::kSeparate, CommSpecsOf(probe_run.plans.All()));
    const std::unique_ptr<Device> device = MakeHostDevice();
    Engine engine({device.get(), &CpuKernels(), &comms}, run.layout, run.plans, {});
    Engine probe({device.get(), &CpuKernels(), &probe_comms}, probe_run.layout, probe_run.plans,
                 {});
    RankContext rank{engine, run, factory.rank(), factory.world_size()},
        probe_rank{probe, probe_run, factory.rank(), factory.world_size()};
    engine.InitWeights(5);
    probe.InitWeights(6);
    for (int64_t step = 0; step < trial.steps; ++step) {
      Snapshot s;
      s.before = Read(engine, "master");
      WriteLogicalTensors(probe, "master", [&](const ParamPlacement& param) {
        return s.before.at(param.spec.name);
      });
      StepOn(probe_rank, probe_config, step);
      s.gradient = Read(probe, "adam_m");
      s.scalars = StepOn(rank, trial.config, step);
      s.master = Read(engine, "master");
      s.m = Read(engine, "adam_m");
      s.v = Read(engine, "adam_v");
      const Tensors unchanged = Read(probe, "master");
      if (rank.rank == 0) {
        snapshots.push_back(s);
        if (unchanged != s.before)
          snapshots.clear();  // the probe must not move: shows as missing steps
      }
    }
  });
  return snapshots;
}

double ScheduledRate(const OptimizerConfig& o, int64_t step, int64_t steps) {
  const auto warmup = static_cast<double>(o.schedule.warmup), s = static_cast<double>(step);
  if (s < warmup) return o.lr * (s + 1) / warmup;
  const double lr = o.lr, low = o.schedule.min_lr;
  switch (o.schedule.kind) {
    case ScheduleConfig::Kind::kConstant:
      return lr;
    case ScheduleConfig::Kind::kCosine: {
      const double length =
          static_cast<double>(o.schedule.decay_steps.value_or(steps - o.schedule.warmup));
      return low + (lr - low) *
                       (1 + std::cos(std::acos(-1.0) * std::min(1.0, (s - warmup) / length))) / 2;
    }
    case ScheduleConfig::Kind::kWsd: {
      const double length = static_cast<double>(*o.schedule.decay_steps),
                   start = static_cast<double>(steps) - length;
      return s < start ? lr : lr + (low - lr) * (s - start) / length;
    }
  }
  return 0;
}

void CheckTrajectory(const Trial& trial) {
  const std::vector<Snapshot> snapshots = Trajectory(trial);
  REQUIRE(static_cast<int64_t>(snapshots.size()) == trial.steps);
  const OptimizerConfig& o = trial.config.optimizer;
  const double b1 = o.betas[0], b2 = o.betas[1];
  std::map<std::string, std::vector<double>> w, m, v, largest_g;
  for (const auto& [name, values] : snapshots[0].before) {
    w[name].assign(values.begin(), values.end());
    m[name].resize(values.size());
    v[name].resize(values.size());
    largest_g[name].resize(values.size());
  }
  for (size_t step = 0; step < snapshots.size(); ++step) {
    INFO("step " << step);
    const Snapshot& s = snapshots[step];
    double squares = 0;
    for (const auto& [name, values] : s.gradient)
      for (const float g : values) squares += static_cast<double>(g) * g;
    const double norm = std::sqrt(squares),
                 clip = o.clip > 0 && norm > o.clip ? o.clip / norm : 1.0;
    const double lr = ScheduledRate(o, static_cast<int64_t>(step), trial.config.train.steps),
                 t = static_cast<double>(step + 1);
    REQUIRE(s.scalars.grad_norm == Approx(norm).epsilon(1e-12));
    REQUIRE(s.scalars.clip_scale == Approx(clip).epsilon(1e-12));
    REQUIRE(s.scalars.lr == Approx(lr).epsilon(1e-12));
    // f32 arithmetic rounds a handful of times per step, each within u = 2^-24 of the largest
    // operand. In the moments the errors of earlier steps decay with beta: 1 / (1 - beta) = 10 and
    // 20 steps' worth of them stay, three roundings each. In the weights they add up.
    const double u = std::ldexp(1.0, -24);
    double worst_m = 0, worst_v = 0, worst_w = 0;
    for (const auto& [name, gradient] : s.gradient) {
      const bool decays =
          name.find("weight") != std::string::npos
              ? name.find("ln_") == std::string::npos && name.find("norm") == std::string::npos
              : name.rfind("embed", 0) == 0;
      for (size_t i = 0; i < gradient.size(); ++i) {
        const double g = gradient[i] * clip;
        double &mi = m[name][i], &vi = v[name][i], &wi = w[name][i];
        mi = b1 * mi + (1 - b1) * g;
        vi = b2 * vi + (1 - b2) * g * g;
        const double update =
            lr * (mi / (1 - std::pow(b1, t))) / (std::sqrt(vi / (1 - std::pow(b2, t))) + o.eps);
        const double largest = std::max(std::abs(wi), std::abs(update));
        wi = wi * (decays ? 1 - lr * o.weight_decay : 1.0) - update;
        double& g_max = largest_g[name][i];
        g_max = std::max({g_max, std::abs(g), 1e-30});
        worst_m = std::max(worst_m, std::abs(mi - s.m.at(name)[i]) / (30 * u * g_max));
        worst_v =
            std::max(worst_v, std::abs(vi - s.v.at(name)[i]) / (60 * u * g_max * g_max + 1e-38));
        worst_w =
            std::max(worst_w, std::abs(wi - s.master.at(name)[i]) / (16 * u * t * (largest + lr)));
      }
    }
    REQUIRE(worst_m <= 1);
    REQUIRE(worst_v <= 1);
    REQUIRE(worst_w <= 1);
  }
}

TEST_CASE("AdamW with warm-up, decay and clipping follows a trajectory in double") {
  using Kind = ScheduleConfig::Kind;
  for (const int world : {1, 3})
    for (const Kind kind : {Kind::kConstant, Kind::kCosine, Kind::kWsd})
      for (const double clip : {0.0, 0.3}) {
        INFO("world " << world << " schedule " << static_cast<int>(kind) << " clip " << clip);
        Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, world, 2).trial;
        trial.steps = 8;
        OptimizerConfig& optimizer = trial.config.optimizer;
        trial.config.train.steps = 8;
        optimizer.lr = 0.01;
        optimizer.clip = clip;
        optimizer.eps = 1e-5;
        optimizer.schedule.kind = kind;
        optimizer.schedule.warmup = 3;
        if (kind != Kind::kConstant) optimizer.schedule.min_lr = 0.001;
        if (kind == Kind::kWsd) optimizer.schedule.decay_steps = 3;
        CheckTrajectory(trial);
      }
}

TEST_CASE("what decays is the matrices and tables, not biases and norms") {
  Trial trial = MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16, 2, 1).trial;
  trial.steps = 4;
  trial.config.optimizer.eps = 1e-5;
  trial.config.optimizer.weight_decay = 5;
  CheckTrajectory(trial);
}

}  // namespace
}  // namespace millrace::test
