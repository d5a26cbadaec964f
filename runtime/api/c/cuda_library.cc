#include "runtime/api/c/cuda_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>

#include "runtime/api/c/status.h"
#include "runtime/config/load.h"

namespace millrace {
namespace {

constinit std::atomic<const RunFunctions*> opened = nullptr;

// Where this library lies itself, symbolic links resolved.
std::filesystem::path OwnFolder() {
  Dl_info info{};
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&OpenCudaLibrary), &info) == 0) return {};
  return std::filesystem::canonical(info.dli_fname, error).parent_path();
}

// When the library is loaded: its name may be relative to where the program is then.
const std::filesystem::path own_folder = OwnFolder();

std::string VersionText(int32_t version) {
  return fmt::format("{}.{}.{}", version / 1000000, version / 1000 % 1000, version % 1000);
}

[[noreturn]] void Refuse(const std::string& file, const std::string& why) {
  throw CallError(MR_UNSUPPORTED,
                  fmt::format("execution.backend is cuda, and {} cannot serve: {}", file, why));
}

const RunFunctions& Open(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error))
    throw ConfigError(
        fmt::format("execution.backend is cuda, and this library has no CUDA in it: it opens {} "
                    "for that, which is not there. It comes with a Millrace that was built with "
                    "CUDA's toolkit; without it the backend can be cpu or auto",
                    file),
        PointerOfKey("execution.backend"));
  // Never closed: its threads and statics live as long as the process.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    Refuse(file, fmt::format("{}. NVIDIA's libraries (cuBLASLt, cuDNN, NCCL) are found as the "
                             "loader finds any: loaded already, in LD_LIBRARY_PATH, or known to "
                             "ldconfig",
                             dlerror()));
  auto* const table = reinterpret_cast<CudaTableFunction*>(dlsym(library, kCudaTableName));
  if (table == nullptr)
    Refuse(file, fmt::format("it has no {}, so it is no library of Millrace's", kCudaTableName));
  const RunFunctions* const functions = table();
  if (functions->layout != RunFunctions::kLayout || functions->version != mr_version_number())
    Refuse(file, fmt::format("it is of version {} (table {}), and this library of {} (table {}): "
                             "install both from one build",
                             VersionText(functions->version), functions->layout, mr_version(),
                             RunFunctions::kLayout));
  return *functions;
}

}  // namespace

const RunFunctions& OpenCudaLibrary() {
  static std::mutex one_opens;
  const std::lock_guard lock(one_opens);
  if (const RunFunctions* const before = opened) return *before;
  const RunFunctions& functions = Open((own_folder / kCudaLibraryFile).string());
  opened = &functions;
  return functions;
}

const RunFunctions* OpenedCudaLibrary() noexcept { return opened; }

}  // namespace millrace
