// What test cases of collectives over the memory of peers have in common.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "comm/peer/peer_communicator.h"
#include "runtime/base/tensor_view.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/nccl/stuck_gather.h"

namespace millrace::testing {

inline PeerOptions Options(int gather_blocks = 16, int reduce_blocks = 32) {
  PeerOptions options;
  options.gather_blocks = gather_blocks;
  options.reduce_blocks = reduce_blocks;
  options.timeout = std::chrono::seconds(60);
  options.gpus = OnOneGpu() ? PeerGpus::kShared : PeerGpus::kOwn;
  return options;
}

inline std::unique_ptr<PeerCommunicator> MakePeer(GpuRank& rank, const std::string& label,
                                                  const PeerOptions& options) {
  return MakePeerCommunicator(rank.host.Make(rank.Everyone(), label), rank.device, label, options);
}

// fn on every rank of a world of several; a world of one has no peers, and the case is skipped.
inline void OnPeers(const std::function<void(GpuRank& rank)>& fn) {
  NcclOptions options;
  options.timeout = std::chrono::seconds(60);
  if (HavePeers()) OnGpuRanks(options, fn);
}

// n elements that begin `offset` behind an aligned address.
inline TensorView Shifted(TestArena& arena, DType dtype, int64_t offset, int64_t n) {
  const TensorView all = arena.Take(dtype, offset + n);
  return {all.data + offset * Bytes(dtype), DenseLayout(dtype, {n})};
}

// What CheckHealth throws within two seconds, or "nothing".
inline std::string AwaitTrouble(const Communicator& comm) {
  std::string health = "nothing";
  for (int i = 0; i < 100 && health == "nothing"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    health = Thrown([&] { comm.CheckHealth(); });
  }
  return health;
}

// On how many ranks `own` is true. A collective.
inline int RanksWith(Communicator& comm, bool own) {
  int ranks = 0;
  for (const std::string& of_rank : comm.HostAllGather(own ? "x" : "")) ranks += of_rank == "x";
  return ranks;
}

}  // namespace millrace::testing
