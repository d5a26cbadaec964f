// The mesh of ranks, and the communicators that a rank of it needs.
//
// Axes     replicate x shard: world rank = replica * shard + shard_rank, so that a
//          shard group is a run of neighbouring ranks (one node, fast links) and a
//          replicate group strides over them.
// Purposes A communicator runs its calls one after the other, so gathers and reductions that shall
// overlap need one each.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/communicator.h"

namespace millrace {

struct Mesh {
  int replicate = 1;  // full copies of the parameters
  int shard = 1;      // ranks that one copy is split over

  int world_size() const noexcept { return replicate * shard; }
  int replica(int rank) const noexcept { return rank / shard; }
  int shard_rank(int rank) const noexcept { return rank % shard; }
  std::vector<int> ShardGroup(int rank) const;  // [shard] ranks of rank's replica
  std::vector<int> ReplicateGroup(
      int rank) const;  // [replicate] ranks that hold the same shard as rank
  bool operator==(const Mesh&) const = default;
};

enum class CommSharing {
  kSeparate,  // gathers and reductions of the shard axis on communicators of their own
  kShared     // both on one; the same bits
};

// The communicators of one rank. Groups of size 1 (an axis of size 1) are
// communicators of world_size 1.
class CommSet {
 public:
  // Collective over the world: every rank calls it with the same mesh and sharing. The factory
  // outlives the set. Error(kInvalidArgument) unless the mesh's axes are positive and their product
  // is the factory's world.
  CommSet(CommFactory& factory, const Mesh& mesh, CommSharing sharing);

  const Mesh& mesh() const noexcept { return mesh_; }
  Communicator& world() const noexcept { return *world_; }  // statistics, votes, host helpers
  Communicator& shard_gather() const noexcept { return *shard_gather_; }  // parameters
  Communicator& shard_reduce() const noexcept;  // gradients; shard_gather() when shared
  Communicator& replicate_reduce() const noexcept {
    return *replicate_reduce_;
  }  // gradients of the outer axis

  // Sum over the communicators.
  CommCounters Counters() const;

  // As CommFactory::AllocateArena.
  std::unique_ptr<DeviceBuffer> AllocateArena(Device& device, int64_t bytes,
                                              const std::string& label);

  // As those of Communicator, on all of them in one order.
  void RegisterMemory(std::byte* base, int64_t bytes);
  void UnregisterMemory(std::byte* base) noexcept;
  void
  Connect();  // each for its purpose: all-gathers, reduce-scatters, all-reduces; world: all-gathers
  void CheckHealth() const;
  void Abort(const std::string& reason) noexcept;

 private:
  std::array<Communicator*, 4> All() const noexcept;  // null where there is none

  Mesh mesh_;
  CommFactory& factory_;
  // shard_reduce_ is null when shared.
  std::unique_ptr<Communicator> world_, shard_gather_, shard_reduce_, replicate_reduce_;
};

}  // namespace millrace
