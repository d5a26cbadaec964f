// The functions of millrace.h that are about a run, as a table: what libmillrace.so asks
// libmillrace_cuda.so for (cuda_library.h). Both are made of the same sources, each with a C++
// library of its own inside, so no object of C++ crosses between them: statuses are blocks of
// malloc's (status.h), handles are numbers that say whose they are, tensors bring their deleters,
// answers are copied (answers.h), and a tokenizer stays where it was opened (event_text.h).
#pragma once

#include <cstdint>

#include "runtime/api/c/millrace.h"

namespace millrace {

struct RunFunctions {
  // Raised with each change of what follows, of its structs, and of mr_status.
  static constexpr int32_t kLayout = 3;

  // These two are first in every layout.
  int32_t layout;
  int32_t version;  // mr_version_number() of its library

  decltype(&::mr_run_create) mr_run_create;
  decltype(&::mr_run_destroy) mr_run_destroy;
  decltype(&::mr_run_info) mr_run_info;
  decltype(&::mr_run_config) mr_run_config;
  decltype(&::mr_init) mr_init;
  decltype(&::mr_load) mr_load;
  decltype(&::mr_import) mr_import;
  decltype(&::mr_save) mr_save;
  decltype(&::mr_export) mr_export;
  decltype(&::mr_step) mr_step;
  decltype(&::mr_evaluate) mr_evaluate;
  decltype(&::mr_score) mr_score;
  decltype(&::mr_score_likeliest) mr_score_likeliest;
  decltype(&::mr_generate) mr_generate;
  decltype(&::mr_answers_count) mr_answers_count;
  decltype(&::mr_answers_get) mr_answers_get;
  decltype(&::mr_answers_free) mr_answers_free;
  decltype(&::mr_stream) mr_stream;
  decltype(&::mr_release) mr_release;
  decltype(&::mr_acquire) mr_acquire;
  decltype(&::mr_weights_count) mr_weights_count;
  decltype(&::mr_weights_name) mr_weights_name;
  decltype(&::mr_weights_borrow) mr_weights_borrow;
  decltype(&::mr_weights_export) mr_weights_export;
};

// Of the library that this is linked into, on the backend that is linked beside it.
const RunFunctions& OwnFunctions() noexcept;

// The last four bits of a run's handle. Odd, so that none is the address of an object.
enum class HandleKind : uintptr_t { kCpu = 1, kCuda = 3 };
inline constexpr int kHandleKindBits = 4;

inline bool IsOfCuda(const mr_run* handle) noexcept {
  constexpr uintptr_t kMask = (uintptr_t{1} << kHandleKindBits) - 1;
  return (reinterpret_cast<uintptr_t>(handle) & kMask) == static_cast<uintptr_t>(HandleKind::kCuda);
}

}  // namespace millrace
