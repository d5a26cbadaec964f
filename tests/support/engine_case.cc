#include "tests/support/engine_case.h"

#include <fmt/format.h>

#include <bit>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/agreement/plan_comms.h"

namespace millrace::test {

void RunEngines(const ShardLayout& layout, const RunPlans& plans, const EngineOptions& options,
                const std::function<void(Engine& engine, int rank)>& fn,
                const MakeDevice& make_device, const KernelTable* kernels) {
  LocalWorld world(layout.mesh.world());
  RunRanks(world, [&](CommFactory& factory) {
    CommSet comms(factory, layout.mesh, CommSharing::kSeparate, CommSpecsOf(plans.All()));
    const std::unique_ptr<Device> device =
        make_device ? make_device(factory.rank()) : MakeHostDevice();
    const KernelTable& table = kernels != nullptr ? *kernels : CpuKernels();
    Engine engine({device.get(), &table, &comms}, layout, plans, options);
    engine.InitWeights(1234);
    fn(engine, factory.rank());
  });
}

void RunEngines(const PlanCase& c, const EngineOptions& options,
                const std::function<void(Engine& engine, int rank)>& fn,
                const MakeDevice& make_device, const KernelTable* kernels) {
  PlanCase evaluation = c;
  evaluation.kind = "eval";
  RunEngines(LayoutOf(c), {StatesOf(c), {PlanOf(c), PlanOf(evaluation)}}, options, fn, make_device,
             kernels);
}

std::vector<int32_t> TokensOf(const PlanCase& c, int rank, int64_t step) {
  std::vector<int32_t> tokens(
      static_cast<size_t>(c.options.accumulate * 2 * (c.model.seq_len + 1)));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(
        (7 * static_cast<int64_t>(i) + 13 * rank + 29 * step + static_cast<int64_t>(i * i) % 11) %
        c.model.vocab);
  return tokens;
}

StepScalars TrainStep(Engine& engine, const PlanCase& c, int rank, int64_t step,
                      const Injection& injection) {
  return StepWith(injection, engine, TokensOf(c, rank, step), step,
                  c.mesh.world() * c.options.accumulate * 2 * c.model.seq_len);
}

std::string TrainedBits(const PlanCase& c, const EngineOptions& options, int64_t steps,
                        const MakeDevice& make_device) {
  std::vector<std::string> bits(static_cast<size_t>(c.mesh.world()));
  RunEngines(
      c, options,
      [&](Engine& engine, int rank) {
        std::string& text = bits[static_cast<size_t>(rank)];
        for (int64_t step = 0; step < steps; ++step) {
          const StepScalars scalars = TrainStep(engine, c, rank, step);
          text += fmt::format("rank {} step {} loss {:x} norm {:x}\n", rank, step,
                              std::bit_cast<uint64_t>(scalars.loss),
                              std::bit_cast<uint64_t>(scalars.grad_norm));
          if (step > 0) continue;
          std::vector<int32_t> held_out = TokensOf(c, rank, 99);
          held_out.resize(static_cast<size_t>(2 * (c.model.seq_len + 1)));
          text += fmt::format("rank {} eval {:x}\n", rank,
                              std::bit_cast<uint64_t>(engine.EvalLossSum(held_out)));
        }
        uint64_t hash = 14695981039346656037ull;
        for (size_t f = 0; f < engine.layout().flats.size(); ++f)
          for (const char* const slot : {"master", "adam_m", "adam_v"})
            for (const float value : engine.ReadShard(slot, FlatId{static_cast<int32_t>(f)}))
              hash = (hash ^ std::bit_cast<uint32_t>(value)) * 1099511628211ull;
        text += fmt::format("rank {} state {:x}\n", rank, hash);
      },
      make_device);
  std::string all;
  for (const std::string& text : bits) all += text;
  return all;
}

}  // namespace millrace::test
