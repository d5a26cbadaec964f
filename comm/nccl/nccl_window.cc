#include "comm/nccl/nccl_window.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "comm/nccl/nccl_memory.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// What stands against a window, before NCCL is asked: peers of a rank that NCCL
// refuses would wait for it.
std::string ArenaTrouble(const std::byte* base, int64_t bytes) {
  if (base == nullptr || bytes <= 0)
    return fmt::format("{} bytes at {}", bytes, static_cast<const void*>(base));
  if (reinterpret_cast<uintptr_t>(base) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return fmt::format("memory at {} is not aligned to {} bytes", static_cast<const void*>(base),
                       NCCL_WIN_REQUIRED_ALIGNMENT);
  if (!IsShareable(base))
    return "the memory cannot be mapped by peers; it has to come from CommFactory::AllocateArena, "
           "with NCCL_CUMEM_ENABLE unset or 1";
  return "";
}

// NCCL 2.28 does not say whether a communicator supports symmetric memory. Where it does not (no
// P2P access between GPUs of a node, NCCL_WIN_ENABLE=0) registration succeeds, with no handle or
// one in host memory.
std::string HandleTrouble(ncclWindow_t window) {
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, window);
  if (status != cudaSuccess) cudaGetLastError();
  if (window != nullptr && status == cudaSuccess && attributes.type == cudaMemoryTypeDevice)
    return "";
  return "NCCL has no symmetric memory for these GPUs: P2P access between those of a node, "
         "NCCL_CUMEM_ENABLE and NCCL_WIN_ENABLE are needed";
}

std::string TextOf(const std::function<void()>& fn) {
  try {
    fn();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// Throws on all ranks when one is in trouble.
void Agree(Communicator& host, const std::string& label, const std::string& trouble) {
  const std::vector<std::string> all = host.HostAllGather(trouble);
  for (size_t r = 0; r < all.size(); ++r)
    MR_REQUIRE(ErrorCode::kComm, all[r].empty(),
               "communicator '{}': rank {} cannot register its arena: {}", label, r, all[r]);
}

}  // namespace

ncclWindow_t RegisterWindow(NcclHandle& handle, Communicator& host, const std::string& label,
                            std::byte* base, int64_t bytes) {
  std::string trouble;
  try {
    trouble = ArenaTrouble(base, bytes);
  } catch (const Error& error) {
    trouble = error.what();
  }
  Agree(host, label, trouble);
  const std::vector<std::string> sizes = host.HostAllGather(std::to_string(bytes));
  for (size_t r = 0; r < sizes.size(); ++r)
    MR_REQUIRE(ErrorCode::kInvalidArgument, sizes[r] == sizes[0],
               "communicator '{}': rank {} registers {} bytes, rank 0 {}; all need as many", label,
               r, sizes[r], sizes[0]);

  const auto window = std::make_shared<ncclWindow_t>(nullptr);
  trouble = TextOf([&] {
    handle.CallBlocking("register", "ncclCommWindowRegister",
                        [window, base, bytes](ncclComm_t comm) {
                          return ncclCommWindowRegister(comm, base, static_cast<size_t>(bytes),
                                                        window.get(), NCCL_WIN_COLL_SYMMETRIC);
                        });
  });
  Agree(host, label, trouble.empty() ? HandleTrouble(*window) : trouble);
  return *window;
}

}  // namespace millrace
