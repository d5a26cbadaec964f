#include "comm/comm_set.h"

#include <algorithm>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/base/rank_list.h"

namespace millrace {
namespace {

void Add(CommUses& uses, const CommUses& more) {
  uses.all_gathers |= more.all_gathers;
  uses.reduce_scatters |= more.reduce_scatters;
  uses.all_reduces |= more.all_reduces;
  uses.all_to_alls |= more.all_to_alls;
}

// Making a communicator is a collective: ranks that want different ones would wait for each other.
void RequireSameSpecs(Communicator& world, const std::vector<CommSpec>& specs) {
  std::string mine;
  for (const CommSpec& spec : specs)
    mine += fmt::format("{}'{}' for{}{}{}{}", mine.empty() ? "" : ", ", ToString(spec.key),
                        spec.uses.all_gathers ? " all_gather" : "",
                        spec.uses.reduce_scatters ? " reduce_scatter" : "",
                        spec.uses.all_reduces ? " all_reduce" : "",
                        spec.uses.all_to_alls ? " all_to_all" : "");
  const std::vector<std::string> all = world.HostAllGather(mine);
  for (size_t r = 0; r < all.size(); ++r)
    MR_REQUIRE(
        ErrorCode::kConfig, all[r] == all[0],
        "rank {} plans for the communicators {}, but rank 0 for {}: the ranks have different "
        "configurations or builds",
        r, all[r], all[0]);
}

}  // namespace

std::string ToString(const CommKey& key) {
  return fmt::format("{} {}", ToString(key.axes), Name(key.stream));
}

CommSet::CommSet(CommFactory& factory, const Mesh& mesh, CommSharing sharing,
                 const std::vector<CommSpec>& specs)
    : mesh_(mesh), factory_(factory) {
  const bool positive = std::all_of(kAxes.begin(), kAxes.end(),
                                    [&](const Axis axis) { return mesh.Size(axis) >= 1; });
  MR_REQUIRE(ErrorCode::kInvalidArgument, positive && mesh.world() == factory.world_size(),
             "a mesh of {} does not make a world of {} ranks", ToString(mesh),
             factory.world_size());
  const int rank = factory.rank();
  const auto add = [&](const std::string& name, AxisSet axes) {
    members_.push_back({name, axes, kNoCommUses, mesh.Group(rank, axes), nullptr});
    return members_.size() - 1;
  };
  const size_t world = add("world", AxisSet::All());
  members_[world].comm = factory.MakeSmall(members_[world].ranks, "world");

  std::vector<CommSpec> ordered = specs;
  std::sort(ordered.begin(), ordered.end(), [](const CommSpec& a, const CommSpec& b) {
    return std::tie(a.key.stream, a.key.axes) < std::tie(b.key.stream, b.key.axes);
  });
  RequireSameSpecs(*members_[world].comm, ordered);
  for (const CommSpec& spec : ordered) {
    const bool shared = sharing == CommSharing::kShared;
    const auto with_these_axes =
        std::find_if(places_.begin(), places_.end(),
                     [&](const Place& place) { return place.key.axes == spec.key.axes; });
    size_t member = 0;
    if (with_these_axes == places_.end() && spec.key.axes == AxisSet::All())
      member = world;
    else if (with_these_axes != places_.end() && shared)
      member = with_these_axes->member;
    else
      member = add(shared ? ToString(spec.key.axes) : ToString(spec.key), spec.key.axes);
    places_.push_back({spec.key, member});
    Add(members_[member].uses, spec.uses);
  }
  for (Member& member : members_)
    if (!member.comm)
      member.comm =
          factory.Make(member.ranks, fmt::format("{} of {}", member.name, RanksText(member.ranks)));
}

CommSet::~CommSet() {
  while (!members_.empty()) members_.pop_back();
}

size_t CommSet::IndexOf(const CommKey& key) const {
  for (const Place& place : places_)
    if (place.key == key) return place.member;
  MR_FAIL("no communicator '{}': the plans that the communicators were made for have no such call",
          ToString(key));
}

CommCounters CommSet::Counters() const {
  CommCounters sum;
  for (const Member& member : members_) sum += member.comm->counters();
  return sum;
}

std::unique_ptr<DeviceBuffer> CommSet::AllocateArena(Device& device, int64_t bytes,
                                                     const std::string& label) {
  return factory_.AllocateArena(device, bytes, label);
}

void CommSet::RegisterMemory(std::byte* base, int64_t bytes) {
  for (const Member& member : members_) member.comm->RegisterMemory(base, bytes);
}

void CommSet::UnregisterMemory(std::byte* base) noexcept {
  for (const Member& member : members_) member.comm->UnregisterMemory(base);
}

void CommSet::Connect() {
  for (const Member& member : members_) member.comm->Connect(member.uses);
}

void CommSet::CheckHealth() const {
  for (const Member& member : members_) member.comm->CheckHealth();
}

void CommSet::Abort(const std::string& reason) noexcept {
  for (const Member& member : members_) member.comm->Abort(reason);
}

}  // namespace millrace
