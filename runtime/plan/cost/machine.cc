#include "runtime/plan/cost/machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/cost/machine_file.h"
#include "runtime/plan/cost/machine_texts.h"

namespace millrace {

std::string_view Name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kPeers:
      return "peers";
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kTree:
      return "tree";
    case CollectiveAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

Machine Machine::OverPeerMemory(bool with_nccl) const {
  Machine machine = *this;
  machine.maps_peers = true;
  machine.has_communicators = with_nccl;
  return machine;
}

const std::vector<Machine>& Machines() {
  static const std::vector<Machine> machines = {
      ParseMachine(kMachineH100, "h100"),
      ParseMachine(kMachineH200, "h200"),
      ParseMachine(kMachineCpu, "cpu"),
  };
  return machines;
}

const Machine& FindMachine(std::string_view name) {
  std::string known;
  for (const Machine& machine : Machines()) {
    if (machine.name == name) return machine;
    known += (known.empty() ? "" : ", ") + machine.name;
  }
  MR_REQUIRE(ErrorCode::kConfig, false, "--machine: \"{}\" is not known; known are {}", name,
             known);
  return Machines().front();
}

Machine WithLinks(const Machine& machine, const StatedLinks& stated) {
  MR_REQUIRE(ErrorCode::kConfig, stated.ranks_per_host >= 0, "--ranks-per-host: {} is below 1",
             stated.ranks_per_host);
  for (const auto& [flag, rate] :
       {std::pair{"--link", stated.link}, std::pair{"--host-link", stated.host_link}})
    MR_REQUIRE(ErrorCode::kConfig, rate >= 0 && std::isfinite(rate),
               "{}: {} GB/s; a rate is a number above 0", flag, rate / 1e9);
  Machine with = machine;
  if (stated.ranks_per_host > 0) with.ranks_per_host = stated.ranks_per_host;
  if (stated.link > 0) with.link = with.peer_link = stated.link;
  if (stated.host_link > 0) with.host_link = stated.host_link;
  MR_REQUIRE(ErrorCode::kConfig, with.ranks_per_host == 0 || with.host_link > 0,
             "--ranks-per-host: no rate between hosts is known of machine {}; state one with "
             "--host-link GB/s",
             machine.name);
  return with;
}

Machine ShareOf(const Machine& machine, int world) {
  Machine share = machine;
  if (machine.devices == 0 || world <= machine.devices) return share;
  const double ranks = static_cast<double>(world) / machine.devices;
  for (double* rate :
       {&share.peak_bf16, &share.peak_f32, &share.gemm_bf16, &share.gemm_f32, &share.gemm_fp8,
        &share.vector, &share.memory, &share.link, &share.peer_link})
    *rate /= ranks;
  for (GemmShape& shape : share.gemm_shapes) shape.flops /= ranks;
  for (AttentionRate& rate : share.attention) {
    rate.forward /= ranks;
    rate.backward /= ranks;
  }
  return share;
}

}  // namespace millrace
