// A machine that a plan can be timed for: what its devices, links and kernels do. A machine is
// a file (machine_file.h); those that ship are configs/machines/*.json, with their sources. A
// prediction is as good as these figures; `plan` prints them beside every time it states.
//
// Units  FLOP/s and bytes/s of one rank's device (GPU or core), seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

// What one of a device's units (a multiprocessor) computes of a product at a time, and its rate
// as a share of the device's GEMM rate when all units are busy.
struct GemmTile {
  int64_t m = 0, n = 0;
  double efficiency = 1;
};

// A product [m, k] x [k, n] that was timed in bursts, as it runs in a step between other work: a
// power cap is another figure (Machine::capped_gemm).
struct GemmShape {
  DType dtype = DType::kBF16;  // of the operands
  int64_t m = 0, n = 0, k = 0;
  double flops = 0;  // FLOP/s
};

// Of a kernel whose time is its memory traffic, by its op's name.
struct KernelRate {
  double efficiency = 1;  // of Machine::memory; of products by experts, of the GEMM rate too
  double start = 0;       // seconds, beside Machine::kernel_start: a second launch, a sort
};

enum class CollectiveAlgorithm { kPeers, kRing, kTree, kHierarchical };
std::string_view Name(CollectiveAlgorithm algorithm);

struct Machine {
  std::string name;                      // "h100", "h200", "cpu": what --machine takes
  std::string title;                     // for people
  std::string source;                    // where the figures come from
  std::string measured;                  // when and how, on one host; "": figures of several places
  double peak_bf16 = 0, peak_f32 = 0;    // dense, from the data sheet: what MFU divides by
  double gemm_bf16 = 0, gemm_f32 = 0;    // what large GEMMs on random data sustain, hot
  double gemm_fp8 = 0;                   // of operands in FP8; 0: as f32
  int gemm_units = 0;                    // of a device; 0: a product of any shape runs at that rate
  double gemm_k_start = 0;               // a tile takes as long as with so much more k
  std::vector<GemmTile> gemm_tiles;      // that products may be cut into; used with gemm_units
  std::vector<GemmShape> gemm_shapes;    // correct the rule for shapes near them
  double vector = 0;                     // f32 arithmetic outside GEMMs
  std::vector<AttentionRate> attention;  // by head_dim, then length, ascending
  double attention_start = 0;            // seconds of an attention call however small
  double memory = 0;                     // bytes/s of a copy, reads plus writes
  double kernel_start = 0;               // seconds of any kernel however small
  std::map<std::string, KernelRate, std::less<>> kernels;  // absent: efficiency 1
  double link = 0;      // bytes/s that a rank sends during a large collective
  double link_hop = 0;  // seconds for a message from a rank to one on its host
  // Ranks that a host has, and bytes/s that each of them sends to other hosts (its network card, or
  // its share of the host's). 0 ranks: all are on one host, or what is between hosts is not known.
  int ranks_per_host = 0;
  double host_link = 0;
  double host_hop = 0;            // seconds for a message from a rank to one on another host
  double collective_latency = 0;  // of each collective, beside its hops
  // What the communicators' library has; the fastest is taken (collective.h).
  std::vector<CollectiveAlgorithm> algorithms = {CollectiveAlgorithm::kRing};
  // Over the memory of peers on one host; 0: as link and collective_latency with one hop.
  double peer_link = 0, peer_latency = 0;
  // Of a device's compute, what a collective that sends takes from the kernels beside it.
  double collective_share = 0;
  // Of its own speed, what a collective keeps while kernels run beside it.
  double collective_beside = 1;
  // And what one over peers' memory keeps when they have ended, if it began beside them: its blocks
  // stay where there was room for them.
  double collective_begun = 1;
  // The power cap: at which rate each kind of work could go on for ever if a device did nothing
  // else: products of models, what they read and write included; attention of kernel_rates.h's
  // shapes; copies. A step takes at least the sum of its work over these rates (cost_model.h).
  // 0: no cap, and of wide heads: that of the others.
  double capped_gemm = 0, capped_attention = 0, capped_wide_attention = 0, capped_memory = 0;
  double op_gap = 0;  // from the end of a kernel to the start of the next on its stream
  // False: a host stream runs each op when it is issued, so that nothing overlaps.
  bool concurrent_streams = true;
  // Kernels of two streams at once share the device; else each has one to itself.
  bool kernels_share = false;
  // Bytes of a rank's device that are not the arena, at most: the context and what libraries load.
  // 0: nobody has measured.
  int64_t process_bytes = 0;
  // What NCCL takes beside (communicators.h): once, with the first communicator; for each; for each
  // of its channels, and for what a channel connects at the first call: a ring, the trees of
  // all-reduces, a ring that crosses hosts.
  int64_t nccl_bytes = 0, communicator_bytes = 0, channel_bytes = 0, ring_bytes = 0, tree_bytes = 0,
          network_ring_bytes = 0;
  int64_t peer_communicator_bytes = 0;  // of a communicator over the memory of peers
  // Collectives run over the memory of peers where all ranks of a copy of the parameters are on one
  // host; a plan that cannot know counts both kinds of communicator.
  bool maps_peers = false, has_communicators = true;
  // What a device has, by cudaMemGetInfo, about; 0: the host's memory, not looked at.
  int64_t device_bytes = 0;
  int devices = 0;  // ranks that have a device of their own; more share them. 0: all have

  double peak(DType compute) const { return IsFloatOf16Bits(compute) ? peak_bf16 : peak_f32; }
  // The same over peers' memory; `with_nccl`: communicators of NCCL's are counted as if there were
  // no peers' memory.
  Machine OverPeerMemory(bool with_nccl) const;
  double gemm(DType operands) const {
    if (IsFloatOf16Bits(operands)) return gemm_bf16;
    return IsFloat8(operands) && gemm_fp8 > 0 ? gemm_fp8 : gemm_f32;
  }
};

// What `plan` was told instead of a machine's own figures; 0: nothing. Error(kConfig): a negative
// figure, or ranks per host on a machine of which no rate between hosts is known.
struct StatedLinks {
  int ranks_per_host = 0;
  double link = 0, host_link = 0;  // bytes/s
};
Machine WithLinks(const Machine& machine, const StatedLinks& stated);

// The machines that ship, in the order that --help lists them.
const std::vector<Machine>& Machines();

// One that ships. Error(kConfig) with the names that exist.
const Machine& FindMachine(std::string_view name);

// `machine` as one of `world` ranks has it: rates divided by the ranks per device.
Machine ShareOf(const Machine& machine, int world);

}  // namespace millrace
