// execution.peer_memory: when it is in force, and what is said where it is not.
#include "runtime/api/peer_decision.h"

#include <catch2/catch.hpp>

#include "comm/peer/peer_call.h"
#include "runtime/base/error.h"
#include "runtime/config/validate.h"

namespace millrace {
namespace {

using Wanted = ExecutionConfig::PeerMemory;
using Catch::Contains;

constexpr Mesh kFour{1, 4}, kHybrid{2, 2}, kCopies{4, 1}, kAlone{1, 1},
    kTensor = kCopies.With(Axis::kTensor, 2), kContext = kHybrid.With(Axis::kContext, 2);

// What stands between the GPUs, and how often that was asked.
struct Gpus {
  std::string trouble;
  int asked = 0;
  PeerDecision Decide(Wanted wanted, const Mesh& mesh, Backend backend = Backend::kCuda) {
    return DecidePeerMemory(wanted, backend, mesh, [this] { return ++asked, trouble; });
  }
};

// The layer of keys does not know the kernels.
static_assert(kMostPeers == kMaxPeers);

TEST_CASE("GPUs that reach each other use it when they are told to, and say so") {
  Gpus gpus;
  for (const Mesh& mesh : {kFour, kHybrid, kTensor, kContext})
    for (const Wanted wanted : {Wanted::kAuto, Wanted::kOn}) {
      const PeerDecision decision = gpus.Decide(wanted, mesh);
      CHECK(decision.use);
      CHECK_THAT(decision.notice,
                 Contains(std::to_string(mesh.Size(kCopyAxes)) + " GPUs to a copy"));
    }
  CHECK(gpus.asked == 8);
}

TEST_CASE("off asks nobody and says nothing") {
  Gpus gpus{"never read"};
  for (const Mesh& mesh : {kFour, kAlone}) {
    const PeerDecision decision = gpus.Decide(Wanted::kOff, mesh);
    CHECK_FALSE(decision.use);
    CHECK(decision.notice.empty());
  }
  CHECK_FALSE(gpus.Decide(Wanted::kOff, kFour, Backend::kCpu).use);
  CHECK(gpus.asked == 0);
}

TEST_CASE("where it cannot be, auto goes on and says why, on stops with the same reason") {
  struct Case {
    Mesh mesh;
    Backend backend;
    std::string trouble, reason;
    int asked;
  };
  const std::string far = "rank 1 has no peer memory: rank 0: GPU 0000:19:00.0 has no P2P access";
  for (const Case& c :
       {Case{kFour, Backend::kCuda, far, far, 1}, Case{kFour, Backend::kCpu, "", "on the CPU", 0},
        Case{kAlone, Backend::kCuda, "", "one rank has no peers", 0},
        Case{kCopies, Backend::kCuda, "", "parallel.shard, tensor and context are 1", 0}}) {
    Gpus gpus{c.trouble};
    const PeerDecision decision = gpus.Decide(Wanted::kAuto, c.mesh, c.backend);
    CHECK_FALSE(decision.use);
    CHECK_THAT(decision.notice,
               Contains("execution.peer_memory = auto: not in use: ") && Contains(c.reason));
    CHECK(gpus.asked == c.asked);
    try {
      gpus.Decide(Wanted::kOn, c.mesh, c.backend);
      FAIL("`on` went on where " << c.reason);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      CHECK_THAT(error.what(), Contains("execution.peer_memory = on: ") && Contains(c.reason) &&
                                   Contains("`auto`") && Contains("`off`"));
    }
  }
}

}  // namespace
}  // namespace millrace
