// Makes communicators over groups of ranks. Implementations: comm/local (LocalWorld), comm/mpi
// (MpiCommFactory), comm/nccl (NcclCommFactory, around one of the others).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "runtime/base/device.h"

namespace millrace {

class CommFactory {
 public:
  virtual ~CommFactory() = default;

  virtual int rank() const noexcept = 0;        // of the calling rank in the world
  virtual int world_size() const noexcept = 0;  // >= 1

  // A communicator over the world ranks `ranks`, ascending, which include rank(); rank ranks[i] of
  // the world is rank i of the group. Each call makes a new one, which shares nothing with earlier
  // ones over the same ranks. `label` names it in errors.
  //
  // Order    Every member makes the same call; calls for groups that share members come in the same
  //          order on all of them. Other ranks take no part.
  // Errors   Error(kInvalidArgument) when the list is empty, not ascending, outside the world or
  //          without rank(). As a collective: Error(kTimeout), Error(kPeerLost).
  virtual std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                             const std::string& label) = 0;

  // As Make, for calls that move a few KB: statistics, votes. A transport may give such a
  // communicator fewer resources; larger calls are right, and slow. Default: as Make.
  virtual std::unique_ptr<Communicator> MakeSmall(const std::vector<int>& ranks,
                                                  const std::string& label) {
    return Make(ranks, label);
  }

  // Memory of `device` that Communicator::RegisterMemory of this factory's communicators takes.
  // Default: what the device allocates.
  virtual std::unique_ptr<DeviceBuffer> AllocateArena(Device& device, int64_t bytes,
                                                      const std::string& label) {
    return device.Allocate(bytes, label);
  }

  // Why the memory behind an arena has to stay while there are communicators: others know it, or
  // have it mapped. "": it may go and come again at its addresses (PagedBuffer), and then the arena
  // is the device's own, AllocatePaged, and is registered all the same. The same on all ranks.
  virtual std::string WhyArenaStays() const { return ""; }
};

// The checks of Make, shared by the implementations. Returns the index of `rank` in `ranks`.
int CheckedGroupRank(const std::vector<int>& ranks, const std::string& label, int rank,
                     int world_size);

}  // namespace millrace
