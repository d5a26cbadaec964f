// Memory of every rank of a group, as this rank's GPU addresses it: CUDA IPC between processes,
// peer access between threads of one.
//
// Needs    All ranks on one host, a GPU each (or PeerGpus::kShared), P2P access between any two of
//          them; memory of cudaMalloc, from its beginning; at most kMaxPeers ranks.
// Cost     Page tables of the mapped memory: 2 MiB per GiB and peer, measured on
//          H200s; nothing else.
// Errors   As a collective, thrown on all ranks together: Error(kComm) naming the first rank that
//          something stands against, and what. There is no other path behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

// kShared: several ranks may have one GPU, for tests where a host has one. Kernels that wait for
// each other then share its multiprocessors (threads) or its time slices (processes).
enum class PeerGpus { kOwn, kShared };

class PeerMapping {
 public:
  // A collective over `host`; `bytes` is the same on all ranks.
  static std::unique_ptr<PeerMapping> Make(Communicator& host, CudaDevice& device,
                                           const std::string& label, std::byte* base, int64_t bytes,
                                           PeerGpus gpus = PeerGpus::kOwn);
  // Local. No call that uses the mapping is in flight. CUDA asks that memory be freed only when no
  // peer has it mapped any more: ranks that go on afterwards meet in between.
  ~PeerMapping();
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;

  int64_t bytes() const { return bytes_; }
  std::byte* base(int rank) const { return bases_[static_cast<size_t>(rank)]; }
  // Where rank `rank` has what lies at `own` here.
  std::byte* At(int rank, const std::byte* own) const {
    return base(rank) + (own - base(own_rank_));
  }

 private:
  PeerMapping(int own_rank, int64_t bytes) : own_rank_(own_rank), bytes_(bytes) {}

  const int own_rank_;
  const int64_t bytes_;
  std::vector<std::byte*> bases_;   // by rank
  std::vector<std::byte*> opened_;  // of other processes
};

}  // namespace millrace
