#include "comm/peer/peer_mapping.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>

#include "comm/peer/peer_call.h"
#include "comm/process_id.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// What a rank tells the others about itself; plain bytes between processes of one program.
struct Card {
  char host[64] = {};    // id of the running kernel: ranks that differ share no memory
  char bus[32] = {};     // PCI address of the GPU
  char spaces[64] = {};  // the process's IPC and PID namespaces
  uint64_t process = 0;
  int64_t bytes = 0;
  std::byte* base = nullptr;
  cudaIpcMemHandle_t handle = {};
  char trouble[256] = {};
};

void Put(const std::string& text, char* to, size_t room) { to[text.copy(to, room - 1)] = '\0'; }

std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// "ipc:[4026531839] pid:[4026531836]"; containers of one host have others.
std::string Namespaces() {
  std::string spaces;
  for (const char* name : {"ipc", "pid"}) {
    std::error_code ignored;
    if (!spaces.empty()) spaces += ' ';
    spaces += std::filesystem::read_symlink(std::string("/proc/self/ns/") + name, ignored).string();
  }
  return spaces;
}

// What CUDA says against it, with the error taken off the thread; empty where it says nothing.
std::string Trouble(const char* call, cudaError_t status) {
  if (status == cudaSuccess) return "";
  cudaGetLastError();
  return fmt::format("{}: {}", call, cudaGetErrorString(status));
}

Card OwnCard(CudaDevice& device, std::byte* base, int64_t bytes, bool alone) {
  Card card;
  Put(HostId(), card.host, sizeof card.host);
  Put(Namespaces(), card.spaces, sizeof card.spaces);
  card.process = ProcessId();
  card.bytes = bytes;
  card.base = base;
  std::string trouble = Trouble("cudaDeviceGetPCIBusId",
                                cudaDeviceGetPCIBusId(card.bus, sizeof card.bus, device.ordinal()));
  if (trouble.empty() && !alone) {
    trouble = Trouble("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&card.handle, base));
    if (!trouble.empty()) trouble += " (memory of cudaMalloc can be shared; NCCL's windows cannot)";
  }
  Put(trouble, card.trouble, sizeof card.trouble);
  return card;
}

std::vector<Card> Exchange(Communicator& host, const Card& own) {
  std::string payload(sizeof own, '\0');
  std::memcpy(payload.data(), &own, sizeof own);
  std::vector<Card> cards;
  for (const std::string& other : host.HostAllGather(payload)) {
    MR_CHECK_EQ(other.size(), sizeof(Card), "ranks of different programs");
    std::memcpy(&cards.emplace_back(), other.data(), sizeof(Card));
  }
  return cards;
}

bool SameGpu(const Card& own, const Card& peer) { return std::strcmp(own.bus, peer.bus) == 0; }

// What stands against mapping the memory of `peer`, known before anything is opened.
std::string Against(const Card& own, const Card& peer, int own_ordinal, PeerGpus gpus) {
  if (peer.trouble[0] != '\0') return peer.trouble;
  if (own.host[0] == '\0')
    return "cannot be told to be on this host: no /proc/sys/kernel/random/boot_id here";
  if (std::strcmp(own.host, peer.host) != 0) return "is on another host";
  if (own.bytes != peer.bytes)
    return fmt::format("has {} bytes, and this rank {}", peer.bytes, own.bytes);
  if (SameGpu(own, peer)) return gpus == PeerGpus::kShared ? "" : "is on the same GPU";
  int ordinal = 0, can = 0;
  std::string trouble = Trouble("its GPU is not visible here: cudaDeviceGetByPCIBusId",
                                cudaDeviceGetByPCIBusId(&ordinal, peer.bus));
  if (trouble.empty())
    trouble =
        Trouble("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, own_ordinal, ordinal));
  if (trouble.empty() && can == 0)
    trouble = fmt::format("GPU {} has no P2P access to its GPU, {}", own.bus, peer.bus);
  return trouble;
}

std::string EnablePeer(const Card& peer) {
  int ordinal = 0;
  std::string trouble =
      Trouble("cudaDeviceGetByPCIBusId", cudaDeviceGetByPCIBusId(&ordinal, peer.bus));
  if (!trouble.empty()) return trouble;
  const cudaError_t status = cudaDeviceEnablePeerAccess(ordinal, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return "";
  }
  return Trouble("cudaDeviceEnablePeerAccess", status);
}

// Throws on all ranks when one is in trouble.
void Agree(Communicator& host, const std::string& label, const std::string& trouble) {
  const std::vector<std::string> all = host.HostAllGather(trouble);
  for (size_t r = 0; r < all.size(); ++r)
    MR_REQUIRE(ErrorCode::kComm, all[r].empty(),
               "communicator '{}': rank {} has no peer memory: {}", label, r, all[r]);
}

}  // namespace

std::unique_ptr<PeerMapping> PeerMapping::Make(Communicator& host, CudaDevice& device,
                                               const std::string& label, std::byte* base,
                                               int64_t bytes, PeerGpus gpus) {
  const int rank = host.rank(), world = host.world_size();
  MR_CUDA(cudaSetDevice(device.ordinal()));
  const std::vector<Card> cards = Exchange(host, OwnCard(device, base, bytes, world == 1));
  const Card& own = cards[static_cast<size_t>(rank)];
  std::string trouble =
      world <= kMaxPeers ? "" : fmt::format("{} ranks; at most {}", world, kMaxPeers);
  for (int r = 0; r < world && trouble.empty(); ++r) {
    if (r == rank) continue;
    trouble = Against(own, cards[static_cast<size_t>(r)], device.ordinal(), gpus);
    if (!trouble.empty()) trouble = fmt::format("rank {}: {}", r, trouble);
  }
  Agree(host, label, trouble);

  std::unique_ptr<PeerMapping> mapping(new PeerMapping(rank, bytes));
  for (int r = 0; r < world && trouble.empty(); ++r) {
    const Card& peer = cards[static_cast<size_t>(r)];
    void* mapped = peer.base;
    if (peer.process == own.process && !SameGpu(own, peer)) trouble = EnablePeer(peer);
    if (r != rank && peer.process != own.process) {
      trouble = Trouble("cudaIpcOpenMemHandle",
                        cudaIpcOpenMemHandle(&mapped, peer.handle, cudaIpcMemLazyEnablePeerAccess));
      if (trouble.empty()) mapping->opened_.push_back(static_cast<std::byte*>(mapped));
      if (!trouble.empty() && std::strcmp(own.spaces, peer.spaces) != 0)
        trouble += fmt::format(
            " (it is in another container: {} there, {} here; containers whose ranks map each "
            "other's memory share these namespaces: --ipc=host --pid=host)",
            peer.spaces, own.spaces);
    }
    if (!trouble.empty()) trouble = fmt::format("rank {}: {}", r, trouble);
    mapping->bases_.push_back(static_cast<std::byte*>(mapped));
  }
  Agree(host, label, trouble);
  return mapping;
}

PeerMapping::~PeerMapping() {
  for (std::byte* memory : opened_) static_cast<void>(cudaIpcCloseMemHandle(memory));
}

}  // namespace millrace
