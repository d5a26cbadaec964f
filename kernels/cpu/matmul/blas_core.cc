#include "kernels/cpu/matmul/blas_core.h"

#include <cblas.h>
#include <stdlib.h>

#include <optional>

// Of builds for several processors; no header of OpenBLAS declares them. The first forgets the
// core, the second chooses one as when the library is loaded.
extern "C" {
void gotoblas_dynamic_quit() __attribute__((weak));
void gotoblas_dynamic_init() __attribute__((weak));
}

namespace millrace::cpu {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

}  // namespace

std::string MissedBlasCore(std::string_view core) {
  // What OpenBLAS 0.3.21 takes for models of Intel's and AMD's that it does not know. All of this
  // is compiled for AVX2 and FMA (.bazelrc), which no processor of these names has.
  if (core != "Prescott" && core != "Barcelona") return "";
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? "SkylakeX" : "Haswell";
}

bool TakeBlasCore(const std::string& core) {
  if (gotoblas_dynamic_quit == nullptr || gotoblas_dynamic_init == nullptr)
    return core == openblas_get_corename();
  const char* set = ::getenv(kVariable);
  const std::optional<std::string> before = set ? std::optional<std::string>(set) : std::nullopt;
  ::setenv(kVariable, core.c_str(), 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  before ? ::setenv(kVariable, before->c_str(), 1) : ::unsetenv(kVariable);
  return core == openblas_get_corename();
}

void SettleBlasCore() {
  static const bool settled = [] {
    if (::getenv(kVariable) != nullptr) return true;
    const std::string core = MissedBlasCore(openblas_get_corename());
    return core.empty() || TakeBlasCore(core);
  }();
  static_cast<void>(settled);
}

}  // namespace millrace::cpu
