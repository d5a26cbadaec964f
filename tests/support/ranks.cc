#include "tests/support/ranks.h"

#include <chrono>
#include <string>
#include <utility>

#include "comm/host_collectives.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "third_party/catch2/session.h"

namespace millrace::test {
namespace {

class HostRanks final : public Ranks {
 public:
  BackendTraits Traits(int world) const override { return {Backend::kCpu, ScratchBytes(world)}; }
  int MaxWorld() const override { return 64; }
  bool captures() const override { return false; }
  void Run(int world, const std::function<void(const RankSetup&)>& fn) override {
    LocalWorld ranks(world, {.timeout = std::chrono::seconds(60)});
    RunRanks(ranks, [&](CommFactory& factory) { RunOne(factory, fn); });
  }
  void RunOne(CommFactory& factory, const std::function<void(const RankSetup&)>& fn) override {
    const std::unique_ptr<Device> device = MakeHostDevice();
    fn({factory, *device, CpuKernels(), Traits(factory.world_size())});
  }
};

std::unique_ptr<Ranks>& Chosen() {
  static std::unique_ptr<Ranks> ranks = std::make_unique<HostRanks>();
  return ranks;
}

}  // namespace

Ranks& TestRanks() { return *Chosen(); }
bool HaveDevices(int world) {
  if (world <= TestRanks().MaxWorld()) return true;
  SkipCase("needs " + std::to_string(world) + " GPUs, " + std::to_string(TestRanks().MaxWorld()) +
           " visible");
  return false;
}
std::unique_ptr<Ranks> UseRanks(std::unique_ptr<Ranks> ranks) {
  std::swap(Chosen(), ranks);
  return ranks;
}
std::unique_ptr<Ranks> MakeHostRanks() { return std::make_unique<HostRanks>(); }

}  // namespace millrace::test
