#include "runtime/plan/cost/communicators.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "runtime/plan/cost/collective.h"

namespace millrace {
namespace {

// Of a peer's arena, per byte of the tables that map it: measured, 2 MiB per GiB and peer.
constexpr int64_t kBytesPerMappedByte = 512;

// Whether the copies of the parameters have a host to themselves.
bool CopiesOnHosts(const Mesh& mesh, const Machine& machine) {
  return machine.maps_peers &&
         (machine.ranks_per_host == 0 || mesh.Size(kCopyAxes) <= machine.ranks_per_host);
}

// Whose arenas a rank maps.
int64_t MappedPeers(const Mesh& mesh, const Machine& machine) {
  return CopiesOnHosts(mesh, machine) ? mesh.Size(kCopyAxes) - 1 : 0;
}

}  // namespace

std::vector<PlannedCommunicator> CommunicatorsOf(const StepPlan& plan, const Mesh& mesh) {
  std::vector<PlannedCommunicator> found;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      std::visit(
          [&](const auto& typed) {
            if constexpr (requires { typed.axes; }) {
              const AxisSet axes = mesh.Wide(typed.axes);
              // The world has one for statistics.
              if (!IsCollective(op.op) || axes.empty() || typed.axes == AxisSet::All()) return;
              auto known = std::find_if(
                  found.begin(), found.end(), [&](const PlannedCommunicator& communicator) {
                    return communicator.axes == axes && communicator.stream == op.stream;
                  });
              if (known == found.end())
                known = found.insert(known, PlannedCommunicator{axes, op.stream});
              using Op = std::decay_t<decltype(typed)>;
              known->all_reduces |= std::is_same_v<Op, AllReduceOp<View>>;
              known->all_to_alls |= std::is_same_v<Op, AllToAllOp<View>>;
            }
          },
          op.op);
  return found;
}

std::vector<PlannedCommunicator> MostCommunicators(const Mesh& mesh, const ExchangeNeeds& needs) {
  std::vector<PlannedCommunicator> most;
  // Weights of blocks that tensor or expert, or both, split, beside those that none does.
  std::vector<AxisSet> shards;
  for (const AxisSet& split : {AxisSet(), AxisSet(Axis::kTensor), AxisSet(Axis::kExpert),
                               AxisSet({Axis::kTensor, Axis::kExpert})}) {
    const AxisSet axes = mesh.Wide(kCopyAxes - split);
    if (!axes.empty() && std::find(shards.begin(), shards.end(), axes) == shards.end())
      shards.push_back(axes);
  }
  for (const AxisSet& axes : shards)
    for (const StreamId stream : {StreamId::kGather, StreamId::kReduce})
      most.push_back({axes, stream, false, needs.muon && stream == StreamId::kReduce});
  // Parts of matrices to update, where no shards lie along the same axis.
  const AxisSet tensor = mesh.Wide(Axis::kTensor);
  if (needs.muon && !tensor.empty() &&
      std::find(shards.begin(), shards.end(), tensor) == shards.end())
    most.push_back({tensor, StreamId::kReduce, false, true});
  if (const AxisSet replicas = mesh.Wide(Axis::kReplicate); !replicas.empty())
    most.push_back({replicas, StreamId::kReduce, true});
  PlannedCommunicator unused;
  const auto exchange = [&](const AxisSet& wanted) -> PlannedCommunicator& {
    const AxisSet axes = mesh.Wide(wanted);
    if (axes.empty()) return unused = {};
    const auto known =
        std::find_if(most.begin(), most.end(), [&](const PlannedCommunicator& other) {
          return other.axes == axes && other.stream == StreamId::kExchange;
        });
    return known != most.end() ? *known : most.emplace_back(axes, StreamId::kExchange);
  };
  exchange(Axis::kTensor);
  exchange(Axis::kContext);
  exchange(needs.experts_over_tensor ? AxisSet({Axis::kExpert, Axis::kTensor})
                                     : AxisSet(Axis::kExpert))
      .all_to_alls = true;
  exchange(needs.router_sums).all_reduces = true;
  return most;
}

int64_t NcclBytes(const PlannedCommunicator& communicator, int channels, const Mesh& mesh,
                  const Machine& machine) {
  const GroupPlace place = PlaceOf(communicator.axes, mesh, machine.ranks_per_host);
  const int64_t ring = place.hosts > 1 ? machine.network_ring_bytes : machine.ring_bytes;
  int64_t connections = ring;
  if (communicator.all_reduces) connections += machine.tree_bytes;
  if (communicator.all_to_alls) {
    const int here = place.even ? place.ranks / place.hosts : place.ranks;  // at most
    connections += (here - 1) * machine.ring_bytes;
    if (place.hosts > 1) connections += machine.network_ring_bytes;
  }
  return machine.communicator_bytes + channels * (machine.channel_bytes + connections);
}

int64_t BesideArena(const std::vector<PlannedCommunicator>& communicators, const Mesh& mesh,
                    const Machine& machine, int64_t arena_bytes) {
  if (machine.process_bytes == 0 || mesh.world() == 1) return machine.process_bytes;
  const bool peers = CopiesOnHosts(mesh, machine);
  const PlannedCommunicator world{mesh.Wide(AxisSet::All()), StreamId::kCompute, true, false};
  int64_t bytes = machine.process_bytes + machine.nccl_bytes +
                  NcclBytes(world, kSmallCommunicatorChannels, mesh, machine);
  for (const PlannedCommunicator& communicator : communicators) {
    const bool over_peers = peers && (communicator.axes - kCopyAxes).empty();
    if (over_peers) bytes += machine.peer_communicator_bytes;
    if (!over_peers || machine.has_communicators)
      bytes += NcclBytes(communicator, kCommunicatorChannels, mesh, machine);
  }
  return bytes + MappedPeers(mesh, machine) * (arena_bytes / kBytesPerMappedByte);
}

int64_t ArenaBytes(const Mesh& mesh, const ExchangeNeeds& needs, const Machine& machine) {
  if (machine.device_bytes == 0 || machine.process_bytes == 0) return 0;
  const int64_t left =
      machine.device_bytes - BesideArena(MostCommunicators(mesh, needs), mesh, machine, 0);
  const int64_t mapped = MappedPeers(mesh, machine);
  const int64_t tables = (left / (kBytesPerMappedByte + mapped) + 1) * mapped;
  return std::max<int64_t>(left - tables, 1);  // 1: known, and nothing
}

}  // namespace millrace
