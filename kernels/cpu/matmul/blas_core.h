// Which of its kernels OpenBLAS uses ("core"). It knows processors by their models, and for one
// that is newer than itself takes kernels of SSE3: products are several times slower, and have
// other bits than on any processor that it knows.
#pragma once

#include <string>
#include <string_view>

namespace millrace::cpu {

// Where OpenBLAS does not know this processor: takes the kernels of the newest that has the same
// instructions. Not where the environment names a core (OPENBLAS_CORETYPE), which OpenBLAS reads
// itself. Gemm calls it before its first product; who asks OpenBLAS for its core or configuration
// calls it first. Any number of times, on any thread; nobody else may be inside OpenBLAS, which
// nobody is who comes by Gemm.
void SettleBlasCore();

// What SettleBlasCore is made of, for its test. The core that this processor can have where
// OpenBLAS, which has chosen `core`, does not know it; else "".
std::string MissedBlasCore(std::string_view core);
// Whether OpenBLAS now has `core`: a build for one processor has no other. The environment is as
// before afterwards.
bool TakeBlasCore(const std::string& core);

}  // namespace millrace::cpu
