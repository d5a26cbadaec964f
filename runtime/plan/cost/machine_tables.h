// Which number of a machine's file is which member of Machine: read by machine_file.cc, written by
// machine_text.cc.
#pragma once

#include <cstdint>

#include "runtime/plan/cost/document_section.h"
#include "runtime/plan/cost/machine.h"

namespace millrace {

// A number of a section: the member is value * unit.
struct MachineNumber {
  const char* section;
  const char* key;
  double Machine::*member;
  double unit;
  Least least;
  bool optional = false;  // files from before it have no such key: the member keeps its default
};
struct MachineCount {
  const char* section;
  const char* key;
  int Machine::*member;
};
struct MachineBytes {
  const char* key;
  int64_t Machine::*member;
};

inline constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
inline constexpr int64_t kMib = int64_t{1} << 20;

inline constexpr MachineNumber kMachineNumbers[] = {
    {"peak", "bf16_tflops", &Machine::peak_bf16, kTera, Least::kAboveZero},
    {"peak", "f32_tflops", &Machine::peak_f32, kTera, Least::kAboveZero},
    {"gemm", "bf16_tflops", &Machine::gemm_bf16, kTera, Least::kAboveZero},
    {"gemm", "f32_tflops", &Machine::gemm_f32, kTera, Least::kAboveZero},
    {"gemm", "fp8_tflops", &Machine::gemm_fp8, kTera, Least::kZero},
    {"gemm", "k_start", &Machine::gemm_k_start, 1, Least::kZero},
    {"memory", "copy_gb_s", &Machine::memory, kGiga, Least::kAboveZero},
    {"memory", "vector_tflops", &Machine::vector, kTera, Least::kAboveZero},
    {"launch", "gap_us", &Machine::op_gap, kMicro, Least::kZero},
    {"launch", "kernel_us", &Machine::kernel_start, kMicro, Least::kZero},
    {"launch", "attention_us", &Machine::attention_start, kMicro, Least::kZero},
    {"link", "gb_s", &Machine::link, kGiga, Least::kAboveZero},
    {"link", "hop_us", &Machine::link_hop, kMicro, Least::kZero},
    {"link", "peer_gb_s", &Machine::peer_link, kGiga, Least::kZero},
    {"link", "peer_us", &Machine::peer_latency, kMicro, Least::kZero},
    {"network", "gb_s", &Machine::host_link, kGiga, Least::kZero},
    {"network", "hop_us", &Machine::host_hop, kMicro, Least::kZero},
    {"power", "gemm_tflops", &Machine::capped_gemm, kTera, Least::kZero},
    {"power", "attention_tflops", &Machine::capped_attention, kTera, Least::kZero},
    {"power", "wide_attention_tflops", &Machine::capped_wide_attention, kTera, Least::kZero, true},
    {"power", "memory_gb_s", &Machine::capped_memory, kGiga, Least::kZero},
    {"collectives", "start_us", &Machine::collective_latency, kMicro, Least::kZero},
    {"collectives", "speed_beside_kernels", &Machine::collective_beside, 1, Least::kAboveZero},
    {"collectives", "speed_begun_beside_kernels", &Machine::collective_begun, 1, Least::kAboveZero,
     true},
    {"collectives", "share_of_compute", &Machine::collective_share, 1, Least::kZero},
};
inline constexpr MachineCount kMachineCounts[] = {
    {"gemm", "units", &Machine::gemm_units},
    {"host", "ranks", &Machine::ranks_per_host},
    {"host", "shared_devices", &Machine::devices},
};
inline constexpr MachineBytes kMachineBytes[] = {
    {"memory_mib", &Machine::device_bytes},
    {"process_mib", &Machine::process_bytes},
    {"nccl_mib", &Machine::nccl_bytes},
    {"communicator_mib", &Machine::communicator_bytes},
    {"channel_mib", &Machine::channel_bytes},
    {"ring_mib", &Machine::ring_bytes},
    {"tree_mib", &Machine::tree_bytes},
    {"network_ring_mib", &Machine::network_ring_bytes},
    {"peer_communicator_mib", &Machine::peer_communicator_bytes},
};

inline constexpr const char* kAll = "all";  // the source of everything that no other names

inline constexpr CollectiveAlgorithm kOfLibraries[] = {
    CollectiveAlgorithm::kRing, CollectiveAlgorithm::kTree, CollectiveAlgorithm::kHierarchical};

}  // namespace millrace
