#include "comm/mesh.h"

#include <numeric>

#include "runtime/base/error.h"

namespace millrace {

std::vector<int> Mesh::ShardGroup(int rank) const {
  std::vector<int> ranks(static_cast<size_t>(shard));
  std::iota(ranks.begin(), ranks.end(), replica(rank) * shard);
  return ranks;
}

std::vector<int> Mesh::ReplicateGroup(int rank) const {
  std::vector<int> ranks;
  for (int r = 0; r < replicate; ++r) ranks.push_back(r * shard + shard_rank(rank));
  return ranks;
}

CommSet::CommSet(CommFactory& factory, const Mesh& mesh, CommSharing sharing)
    : mesh_(mesh), factory_(factory) {
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             mesh.replicate >= 1 && mesh.shard >= 1 && mesh.world_size() == factory.world_size(),
             "a mesh of replicate {} x shard {} does not make a world of {} ranks", mesh.replicate,
             mesh.shard, factory.world_size());
  const int rank = factory.rank();
  std::vector<int> all(static_cast<size_t>(mesh.world_size()));
  std::iota(all.begin(), all.end(), 0);
  world_ = factory.MakeSmall(all, "world");
  const std::string replica = fmt::format("replica {}", mesh.replica(rank));
  if (sharing == CommSharing::kShared) {
    shard_gather_ = factory.Make(mesh.ShardGroup(rank), "shard of " + replica);
  } else {
    shard_gather_ = factory.Make(mesh.ShardGroup(rank), "shard gather of " + replica);
    shard_reduce_ = factory.Make(mesh.ShardGroup(rank), "shard reduce of " + replica);
  }
  replicate_reduce_ =
      factory.Make(mesh.ReplicateGroup(rank),
                   fmt::format("replicate reduce of shard {}", mesh.shard_rank(rank)));
}

Communicator& CommSet::shard_reduce() const noexcept {
  return shard_reduce_ ? *shard_reduce_ : *shard_gather_;
}

std::array<Communicator*, 4> CommSet::All() const noexcept {
  return {world_.get(), shard_gather_.get(), shard_reduce_.get(), replicate_reduce_.get()};
}

CommCounters CommSet::Counters() const {
  CommCounters sum;
  for (const Communicator* comm : All()) {
    if (comm == nullptr) continue;
    const CommCounters& c = comm->counters();
    sum.all_gathers += c.all_gathers;
    sum.reduce_scatters += c.reduce_scatters;
    sum.all_reduces += c.all_reduces;
    sum.gathered_bytes += c.gathered_bytes;
    sum.reduced_bytes += c.reduced_bytes;
    sum.all_reduced_bytes += c.all_reduced_bytes;
  }
  return sum;
}

std::unique_ptr<DeviceBuffer> CommSet::AllocateArena(Device& device, int64_t bytes,
                                                     const std::string& label) {
  return factory_.AllocateArena(device, bytes, label);
}

void CommSet::RegisterMemory(std::byte* base, int64_t bytes) {
  for (Communicator* comm : All())
    if (comm != nullptr) comm->RegisterMemory(base, bytes);
}

void CommSet::UnregisterMemory(std::byte* base) noexcept {
  for (Communicator* comm : All())
    if (comm != nullptr) comm->UnregisterMemory(base);
}

void CommSet::Connect() {
  world_->Connect({.all_gathers = true, .reduce_scatters = false, .all_reduces = false});
  shard_gather_->Connect(
      {.all_gathers = true, .reduce_scatters = shard_reduce_ == nullptr, .all_reduces = false});
  if (shard_reduce_)
    shard_reduce_->Connect({.all_gathers = false, .reduce_scatters = true, .all_reduces = false});
  replicate_reduce_->Connect({.all_gathers = false, .reduce_scatters = false, .all_reduces = true});
}

void CommSet::CheckHealth() const {
  for (const Communicator* comm : All())
    if (comm != nullptr) comm->CheckHealth();
}

void CommSet::Abort(const std::string& reason) noexcept {
  for (Communicator* comm : All())
    if (comm != nullptr) comm->Abort(reason);
}

}  // namespace millrace
