// Where exceptions end: what a call of millrace.h returns.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/api/c/millrace.h"

// One block of malloc's, texts included: a status of this library's may be read and freed by the
// other one of the process (run_functions.h), each of which has a C++ library of its own.
struct mr_status {
  int32_t code;
  int32_t is_static;  // 1: nobody frees it, for want of memory (status.cc)
  const char* message;
  const char* pointer;
};

namespace millrace {

// An error whose code only the C interface has: of an argument, a handle, a callback.
class CallError : public std::runtime_error {
 public:
  CallError(int32_t code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int32_t code() const noexcept { return code_; }

 private:
  int32_t code_;
};

// Of the exception that is being handled. Never null.
mr_status* StatusOfCurrentException() noexcept;

// Null when `call` returned.
template <class F>
mr_status* Guarded(F&& call) noexcept {
  try {
    std::forward<F>(call)();
    return nullptr;
  } catch (...) {
    return StatusOfCurrentException();
  }
}

}  // namespace millrace
