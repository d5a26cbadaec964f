#include "runtime/plan/cost/machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Of a peer's arena, per byte of the tables that map it: measured, 2 MiB per GiB and peer.
constexpr int64_t kBytesPerMappedByte = 512;

// cuDNN 9.19, head dim 128, causal, H200 (cudnn-frontend, benchmark/sdpa_benchmark_training); head
// dim 64 is scaled from published neighbours, not measured.
std::vector<AttentionRate> HopperAttention() {
  return {
      {64, 1024, 266e12, 245e12},   {64, 4096, 350e12, 350e12},  {128, 2048, 484e12, 370e12},
      {128, 4096, 591e12, 474e12},  {128, 8192, 644e12, 541e12}, {128, 16384, 673e12, 579e12},
      {128, 32768, 688e12, 581e12},
  };
}

Machine Hopper() {
  Machine m;
  m.source =
      "data sheet peaks; GEMM 769-798 TFLOP/s at 8192^3 on random data and copy bandwidth measured "
      "on the project's machines; attention from cudnn-frontend (head dim 64 scaled); collectives "
      "fitted to NCCL 2.28 on 8 GPUs, NVLS off (8 MiB 43 us, 128 MiB 385 us, 512 MiB 335 GB/s); "
      "memory beside the arena measured on 1, 2 and 4 H200s with the project's NCCL options (543 "
      "to 545 MiB, 1552 to 1559 MiB, whatever the model); f32 GEMM and vector rates assumed 80% of "
      "the f32 peak; between hosts 50 GB/s per GPU, 8 GPUs to a host, is the data sheet of DGX "
      "H100 "
      "and HGX systems (one 400 Gb/s network card per GPU), not measured";
  m.peak_bf16 = 989.4e12;
  m.peak_f32 = 66.9e12;
  m.gemm_bf16 = 790e12;
  m.gemm_f32 = 53e12;
  m.vector = 53e12;
  m.attention = HopperAttention();
  m.link = 335e9;
  m.ranks_per_host = 8;
  m.host_link = 50e9;
  m.collective_latency = 20e-6;
  m.op_gap = 1e-6;
  m.process_bytes = int64_t{568} << 20;
  m.communication_bytes = int64_t{1014} << 20;
  m.peer_memory_bytes = int64_t{424} << 20;
  return m;
}

Machine H100() {
  Machine m = Hopper();
  m.name = "h100";
  m.title = "NVIDIA H100 SXM, 80 GB HBM3, NVLink 4";
  m.memory = 3.0e12;
  m.device_bytes = int64_t{79} << 30;
  return m;
}

Machine H200() {
  Machine m = Hopper();
  m.name = "h200";
  m.title = "NVIDIA H200 SXM, 141 GB HBM3e, NVLink 4";
  m.memory = 4.3e12;
  m.device_bytes = int64_t{139} << 30;
  return m;
}

Machine Cpu() {
  Machine m;
  m.name = "cpu";
  m.title = "generic x86-64 with AVX2, 2 cores, one thread per rank";
  m.source =
      "one core of a 2-core AMD EPYC machine: GEMM, attention and element-wise rates by "
      "tools/bench:kernels_cpu on the shapes of the quickstart (the peak is the fastest GEMM "
      "seen), memcpy of 64 MiB for memory (reads plus writes); shared-memory MPI assumed";
  m.peak_bf16 = m.peak_f32 = 124e9;
  m.gemm_f32 = 97e9;
  m.gemm_bf16 = 93e9;
  m.vector = 35e9;
  m.attention = {{1 << 20, 0, 49e9, 47e9}};
  m.memory = 20e9;
  m.link = 2e9;
  m.collective_latency = 20e-6;
  m.op_gap = 0.2e-6;
  m.concurrent_streams = false;
  m.devices = 2;
  return m;
}

}  // namespace

int64_t Machine::BesideArena(int world, int shard, int64_t arena_bytes) const {
  if (process_bytes == 0 || world == 1) return process_bytes;
  const int64_t tables = maps_peers ? (shard - 1) * (arena_bytes / kBytesPerMappedByte) : 0;
  return process_bytes + (has_communicators ? communication_bytes : peer_memory_bytes) + tables;
}

Machine Machine::OverPeerMemory(bool with_nccl) const {
  Machine machine = *this;
  machine.maps_peers = true;
  machine.has_communicators = with_nccl;
  return machine;
}

int64_t Machine::ArenaBytes(int world, int shard) const {
  if (device_bytes == 0 || process_bytes == 0) return 0;
  const int64_t left = device_bytes - BesideArena(world, shard, 0);
  const int64_t mapped = maps_peers ? shard - 1 : 0;
  const int64_t tables = (left / (kBytesPerMappedByte + mapped) + 1) * mapped;
  return std::max<int64_t>(left - tables, 1);  // 1: known, and nothing
}

const std::vector<Machine>& Machines() {
  static const std::vector<Machine> machines = {H100(), H200(), Cpu()};
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

double LinkBetweenHosts(const Machine& machine, int members) {
  return std::min(machine.link, machine.host_link * members);
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
  if (stated.link > 0) with.link = stated.link;
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
  for (double* rate : {&share.peak_bf16, &share.peak_f32, &share.gemm_bf16, &share.gemm_f32,
                       &share.vector, &share.memory, &share.link})
    *rate /= ranks;
  for (AttentionRate& rate : share.attention) {
    rate.forward /= ranks;
    rate.backward /= ranks;
  }
  return share;
}

}  // namespace millrace
