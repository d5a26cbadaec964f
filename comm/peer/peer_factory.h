// Communicators over the memory of peers for the groups that a run names; those of another factory
// for everything else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/peer/peer_communicator.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/log.h"
#include "runtime/base/mesh.h"

namespace millrace {

// Links that peers' memory is to be reached over: `any` that CUDA has peer access by, or NVLink
// alone. Kernels here were measured over NVLink only.
enum class PeerLinks { kAny, kNvlink };

// What keeps the ranks of some copy of the parameters (kCopyAxes) from each other's memory, or
// kernels that wait for each other from running at once (peer_room.h, with PeerOptions' defaults),
// in an Error's words: the first copy's in the world that has something; "" where nothing does. A
// collective over the world of `host`; the same on all ranks.
std::string PeerTrouble(CommFactory& host, CudaDevice& device, const Mesh& mesh, PeerLinks links);

// Make: over peers' memory for groups of several ranks that `wants` is true for, on each of them,
// and throws as MakePeerCommunicator; other groups as `nccl`, and MakeSmall always. AllocateArena
// gives memory that both take: `nccl` is without symmetric windows. The host, the device and the
// log (what a tear-down has to say) outlive the factory, and the factory its communicators.
std::unique_ptr<CommFactory> MakePeerCommFactory(
    CommFactory& host, std::unique_ptr<CommFactory> nccl, CudaDevice& device,
    std::function<bool(const std::vector<int>& ranks)> wants, const PeerOptions& options = {},
    Log& log = NoLog());

}  // namespace millrace
