// The communicators of one rank: those that its plans call for, and one over the world.
//
// A communicator is named by the axes that it joins and the stream that issues its calls
// (CommKey). It runs its calls one after the other, so gathers and reductions that shall overlap
// are on streams, and so on communicators, of their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/communicator.h"
#include "runtime/base/mesh.h"
#include "runtime/base/stream_id.h"

namespace millrace {

struct CommKey {
  AxisSet axes;
  StreamId stream = StreamId::kCompute;
  bool operator==(const CommKey&) const = default;
};
std::string ToString(const CommKey& key);  // "shard gather"

// A communicator that plans call for, and the kinds of call that they make.
struct CommSpec {
  CommKey key;
  CommUses uses;
};

enum class CommSharing {
  kSeparate,  // one communicator per axes and stream
  kShared     // one per axes, for all streams; the same bits
};

class CommSet {
 public:
  struct Member {
    std::string name;  // "world", "shard gather", or where it is shared, "shard"
    AxisSet axes;
    CommUses uses;           // what the plans call
    std::vector<int> ranks;  // of the world, by rank of the group
    std::unique_ptr<Communicator> comm;
  };

  // Collective over the world: every rank calls it with the same mesh, sharing and specs, which
  // differ in their keys. The factory outlives the set. Error(kInvalidArgument) unless the mesh's
  // axes are positive and their product is the factory's world; Error(kConfig), the same on every
  // rank, where specs differ.
  CommSet(CommFactory& factory, const Mesh& mesh, CommSharing sharing,
          const std::vector<CommSpec>& specs);
  ~CommSet();  // last made, first freed, on all ranks

  const Mesh& mesh() const noexcept { return mesh_; }

  // Over all ranks, whatever the plans: for votes and host helpers. One stream's calls over all
  // axes, the statistics, go to it, too: they are small.
  Communicator& world() const noexcept { return *members_.front().comm; }

  // World first, then in the order of stream and axes: the same on all ranks.
  const std::vector<Member>& members() const noexcept { return members_; }
  // Error(kInternal): no spec has this key.
  size_t IndexOf(const CommKey& key) const;
  Communicator& Of(const CommKey& key) const { return *members_[IndexOf(key)].comm; }

  // Sum over the communicators.
  CommCounters Counters() const;

  // As CommFactory::AllocateArena.
  std::unique_ptr<DeviceBuffer> AllocateArena(Device& device, int64_t bytes,
                                              const std::string& label);
  std::string WhyArenaStays() const { return factory_.WhyArenaStays(); }

  // As those of Communicator, on all of them in one order; Connect each for its uses.
  void RegisterMemory(std::byte* base, int64_t bytes);
  void UnregisterMemory(std::byte* base) noexcept;
  void Connect();
  void CheckHealth() const;
  void Abort(const std::string& reason) noexcept;

 private:
  struct Place {
    CommKey key;
    size_t member;
  };

  Mesh mesh_;
  CommFactory& factory_;
  std::vector<Member> members_;
  std::vector<Place> places_;
};

}  // namespace millrace
