// What tests of whole steps run on: in-process ranks on the CPU, unless the program has chosen
// another device for all of them (tests/support/cuda).
#pragma once

#include <functional>
#include <memory>

#include "comm/comm_factory.h"
#include "runtime/run/session.h"

namespace millrace::test {

// One rank: a device of its own, kernels for it, and peers. All outlive the call that gets it.
struct RankSetup {
  CommFactory& comms;
  Device& device;
  const KernelTable& kernels;
  BackendTraits traits;

  Environment environment() const {
    Environment e;
    e.device = &device;
    e.kernels = &kernels;
    e.comm_factory = &comms;
    e.traits = traits;
    return e;
  }
};

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual BackendTraits Traits(int world) const = 0;
  // The largest world that this machine can run.
  virtual int MaxWorld() const = 0;
  // Whether the first step is issued and later ones are launched.
  virtual bool captures() const = 0;
  // Communicator::RoundsInGathers of groups of several ranks.
  virtual bool RoundsInGathers() const { return true; }
  // `fn` on every rank's thread; ends with the first error, as RunRanks of comm/local.
  virtual void Run(int world, const std::function<void(const RankSetup&)>& fn) = 0;
  // The same for this process's rank of a factory that somebody else made.
  virtual void RunOne(CommFactory& factory, const std::function<void(const RankSetup&)>& fn) = 0;
};

// Host ranks until another choice is made.
Ranks& TestRanks();
// Whether there is a device for each of `world` ranks. When there is not, the running
// test case counts as skipped (SkipCase of third_party/catch2/session.h): what asks
// then leaves something out.
bool HaveDevices(int world);
// Returns what was in use.
std::unique_ptr<Ranks> UseRanks(std::unique_ptr<Ranks> ranks);
std::unique_ptr<Ranks> MakeHostRanks();

}  // namespace millrace::test
