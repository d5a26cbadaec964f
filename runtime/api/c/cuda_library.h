// The second library, for CUDA: a file beside this one, opened when the first run asks for it and
// kept until the process ends. Any thread.
#pragma once

#include "runtime/api/c/run_functions.h"

namespace millrace {

inline constexpr char kCudaLibraryFile[] = "libmillrace_cuda.so";
// Its one exported name, of type CudaTableFunction.
inline constexpr char kCudaTableName[] = "mr_cuda_table";
using CudaTableFunction = const RunFunctions*();

// ConfigError: there is no such file. CallError MR_UNSUPPORTED: it cannot be opened, for want of
// NVIDIA's libraries say, or is no such library, or one of another version. Each names the file.
// A failure is not remembered: it may be tried again.
const RunFunctions& OpenCudaLibrary();

// Null until it was opened.
const RunFunctions* OpenedCudaLibrary() noexcept;

}  // namespace millrace
