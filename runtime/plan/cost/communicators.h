// The device memory of communicators: how many a run makes, over which ranks and for which calls.
//
// NCCL     Once, with a process's first communicator: its kernels. Then for each communicator a
//          part of its own, and for each channel another; and for what a channel connects at the
//          first call that uses it: a ring; for all-reduces trees as well; for all-to-alls a pair
//          per peer, as large as a ring's. Buffers lie at the two ends of a connection: NCCL 2.28.9
//          has 4 MiB for Simple (NCCL_BUFFSIZE), 4.7 for LL128, 0.5 for LL, in whole 2 MiB. So a
//          ring takes as much of each rank however many there are. One that crosses hosts has
//          buffers for the network at both ends of a rank; pairs with ranks of other hosts share
//          one such set, which is NCCL's default and was not measured.
// Channels As comm/nccl/nccl_options.h gives them: 16, and 2 for statistics over the world.
// Peers    Over the memory of peers (maps_peers) communicators within a copy of the parameters take
//          next to nothing, and the arena of each peer that is mapped 8 bytes for each 4 KiB.
//          Statistics and sums over replicas stay with NCCL.
//
// Figures are a machine file's, section `device`. To measure them: `nccl_bench --choose max_ctas=16
// max_ctas=8` on two GPUs (tests/comm/nccl) says MiB when a communicator is made and when gathers
// and sums have connected it; comm/README.md and tools/bench/HISTORY.md have those that the files
// began with.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/mesh.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Channels of a communicator, and of that for statistics.
inline constexpr int kCommunicatorChannels = 16, kSmallCommunicatorChannels = 2;

struct PlannedCommunicator {
  AxisSet axes;
  StreamId stream = StreamId::kCompute;
  bool all_reduces = false, all_to_alls = false;
  bool operator==(const PlannedCommunicator&) const = default;
};

// Those that the plan's collectives call for, beside the world's: one per axes and stream.
std::vector<PlannedCommunicator> CommunicatorsOf(const StepPlan& plan, const Mesh& mesh);

// What of a configuration beside its mesh asks for communicators.
struct ExchangeNeeds {
  bool muon = false;  // ranks exchange matrices to update
  bool experts_over_tensor = false;
  AxisSet router_sums;  // of the ranks whose rows an auxiliary loss evens together
};

// The most that a training plan on the mesh calls for, before there is one.
std::vector<PlannedCommunicator> MostCommunicators(const Mesh& mesh,
                                                   const ExchangeNeeds& needs = {});

// What NCCL takes for one communicator over `axes`, of whose rank most, beyond nccl_bytes.
int64_t NcclBytes(const PlannedCommunicator& communicator, int channels, const Mesh& mesh,
                  const Machine& machine);

// Of a rank's device beside an arena of so many bytes; 0: not known.
int64_t BesideArena(const std::vector<PlannedCommunicator>& communicators, const Mesh& mesh,
                    const Machine& machine, int64_t arena_bytes);

// What is left of the device for the arena; 0: not known.
int64_t ArenaBytes(const Mesh& mesh, const ExchangeNeeds& needs, const Machine& machine);

}  // namespace millrace
