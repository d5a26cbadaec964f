// What a run chooses about NCCL, and the environment that NCCL reads.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class CtaPolicy {
  kDefault,
  kEfficiency,  // fewer blocks where registered buffers allow it
  // All-gathers between windows on copy engines, without blocks; needs `symmetric`. NCCL before
  // 2.31.2 can hang in the first one of two ranks (its issue 2241); Connect() then times out.
  kZero
};

// Whether ranks of a communicator may be threads of one process. Tear-down may then break the heap:
// NCCL (2.28.9) maps an allocation of such a peer a second time. The thread that destroys last
// unmaps these while proxy threads of the other ranks, which it does not wait for, free what is
// mapped. Between processes each has mappings of its own. So a run refuses threads. Tests allow
// them; those of whole steps set NCCL_CUMEM_ENABLE=0, so that nothing is mapped twice
// (tests/comm/nccl/README.md).
enum class RankThreads { kRefuse, kAllow };

// "": all ranks have processes of their own. Else which two have not, in an Error's words. By rank:
// any text that is the same for one process only.
std::string WhyNotProcesses(const std::vector<std::string>& processes);

// Blocks of a collective of CommFactory::MakeSmall, at most.
inline constexpr int kSmallCtas = 2;

// Every rank of a world has the same options.
struct NcclOptions {
  // Longest wait inside NCCL for a peer: making, registering, connecting, tear-down. Not of a
  // collective, which is a kernel: a watchdog sees to it.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // The arena as a symmetric window: NCCL's kernels read and write peers directly.
  bool symmetric = false;
  CtaPolicy cta_policy = CtaPolicy::kDefault;
  // Blocks of one collective. The most is also NCCL's number of channels, and each costs device
  // memory in every communicator: on NVLink 6 MiB from the start, 12 when a ring is connected, 8
  // when trees are; which NCCL does at the first call that uses them (comm/README.md has the
  // figures). 64 is NCCL's own limit. min_ctas 0: NCCL's choice.
  int min_ctas = 0, max_ctas = 16;
  RankThreads threads = RankThreads::kRefuse;
  bool operator==(const NcclOptions&) const = default;
};

// "symmetric,threads,cta_policy=zero,max_ctas=16,min_ctas=4,timeout_ms=60000", each part
// optional; "" is the default. Error(kConfig): an unknown key or value, with what is
// allowed; kZero without symmetric.
NcclOptions ParseNcclOptions(std::string_view text);
std::string ToString(const NcclOptions& options);

// One variable of the environment as we want it, and why.
struct NcclSetting {
  const char* name;
  const char* value;
  bool forced;  // replaces what the user set
  const char* why;
};
const std::vector<NcclSetting>& NcclSettings();

// Those of NcclSettings that `lookup` (name -> value or null) lacks or, where forced, has
// otherwise.
std::vector<NcclSetting> MissingSettings(
    const std::function<const char*(const char* name)>& lookup);

// Whether the kernels of symmetric windows of this version (as ncclGetVersion counts, 22809 is
// 2.28.9) may overtake the kernel before them on their stream: nccl_fence.h.
constexpr bool NeedsFence(int nccl_version) noexcept {
  return nccl_version >= 22800 && nccl_version < 23007;
}

// Puts them into this process's environment, once. NCCL reads each variable at its first use, so
// this precedes every NCCL call; the first call precedes threads that read the environment.
void PrepareNcclEnvironment();

}  // namespace millrace
