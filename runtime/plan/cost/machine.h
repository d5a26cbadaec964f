// Rates of the machines that a plan can be timed for: constants with their sources, measured where
// anybody has. A prediction is as good as these; `plan` prints them beside every time it states.
//
// Units  FLOP/s and bytes/s of one rank's device (GPU or core), seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"

namespace millrace {

// Sustained rate of fused causal attention, counting the lower triangle only, for head dims up to
// `head_dim` and sequences of `length` or more.
struct AttentionRate {
  int64_t head_dim = 0, length = 0;
  double forward = 0, backward = 0;
};

struct Machine {
  std::string name;                      // "h100", "h200", "cpu": what --machine takes
  std::string title;                     // for people
  std::string source;                    // where the figures come from
  double peak_bf16 = 0, peak_f32 = 0;    // dense, from the data sheet: what MFU divides by
  double gemm_bf16 = 0, gemm_f32 = 0;    // what large GEMMs on random data sustain
  double vector = 0;                     // f32 arithmetic outside GEMMs
  std::vector<AttentionRate> attention;  // by head_dim, then length, ascending
  double memory = 0;                     // bytes/s of a copy, reads plus writes
  double link = 0;                       // bytes/s that a rank sends during a large collective
  // Ranks that a host has, and bytes/s that each of them sends to other hosts (its network card, or
  // its share of the host's). 0 ranks: all are on one host, or what is between hosts is not known.
  int ranks_per_host = 0;
  double host_link = 0;
  double collective_latency = 0;  // of each collective
  double op_gap = 0;              // from the end of a kernel to the start of the next on its stream
  // False: a host stream runs each op when it is issued, so that nothing overlaps.
  bool concurrent_streams = true;
  // Bytes of a rank's device that are not the arena, at most: the context and what libraries load;
  // with more than one rank also communicators, their kernels and buffers. 0: nobody has measured.
  int64_t process_bytes = 0, communication_bytes = 0;
  // Where collectives run over the memory of peers and NCCL makes no communicators: in
  // place of communication_bytes, and for the arena of each peer that is mapped, 8
  // bytes for each 4 KiB of it.
  int64_t peer_memory_bytes = 0;
  bool maps_peers = false, has_communicators = true;
  // What a device has, by cudaMemGetInfo, about; 0: the host's memory, not looked at.
  int64_t device_bytes = 0;
  int devices = 0;  // ranks that have a device of their own; more share them. 0: all have

  double peak(DType compute) const { return compute == DType::kBF16 ? peak_bf16 : peak_f32; }
  // Of one of `world` ranks, of which `shard` share each copy of the parameters, and
  // whose arenas are as large.
  int64_t BesideArena(int world, int shard, int64_t arena_bytes) const;
  // The same over peers' memory; `with_nccl`: communicators of NCCL's are made as
  // well, for sums over replicas.
  Machine OverPeerMemory(bool with_nccl) const;
  // What is left of the device for the arena; 0: not known.
  int64_t ArenaBytes(int world, int shard) const;
  double gemm(DType operands) const { return operands == DType::kBF16 ? gemm_bf16 : gemm_f32; }
};

// Of a rank's `link`, what a collective gets whose group has at least `members` ranks on each of
// its hosts. Its ranks send in rings that pass host by host, as many rings as members, each over a
// network card of its own; every card carries its ring's share of what a rank sends.
double LinkBetweenHosts(const Machine& machine, int members);

// What `plan` was told instead of a machine's own figures; 0: nothing. Error(kConfig): a negative
// figure, or ranks per host on a machine of which no rate between hosts is known.
struct StatedLinks {
  int ranks_per_host = 0;
  double link = 0, host_link = 0;  // bytes/s
};
Machine WithLinks(const Machine& machine, const StatedLinks& stated);

// All machines, in the order that --help lists them.
const std::vector<Machine>& Machines();

// Error(kConfig) with the names that exist.
const Machine& FindMachine(std::string_view name);

// `machine` as one of `world` ranks has it: rates divided by the ranks per device.
Machine ShareOf(const Machine& machine, int world);

}  // namespace millrace
