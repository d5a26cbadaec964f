// The one exception type, its codes, and the always-on checks that throw it.
//
// MR_CHECK*   our own mistake: throws kInternal, text prefixed with file:line.
// MR_FAIL     the same where no condition is left to check; does not return.
// MR_REQUIRE  the outside world's: throws the given code; the text is for people, so no file:line.
//             Name the key, file, tensor, unit or rank, the value, and what is allowed.
// A message is required, in fmt syntax. All checks stay on in release builds. Not called CHECK:
// Catch2 owns that.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace millrace {

enum class ErrorCode {
  kInvalidArgument,  // an API caller's mistake that is not a config key
  kOutOfMemory,      // the machine refused memory that the plan asked for
  kDevice,
  kComm,
  kIo,
  kInternal,    // a bug of ours
  kConfig,      // bad configuration or command line
  kData,        // bad or missing input data
  kCheckpoint,  // invalid checkpoint, or none where one is required
  kDoesNotFit,  // the plan exceeds the stated memory budget
  kTimeout,     // a rank or collective made no progress in time
  kPeerLost,    // another rank died
  kNonFinite,   // stopped by the non-finite policy
  kPreempted,   // state saved on request; run again to continue
};

// The process exit code that schedulers act on: 2 config, 3 data, 4 checkpoint, 5 does not fit or
// out of memory, 70 internal or invalid argument, 71 timeout, 72 peer lost or communication, 73
// non-finite, 74 I/O, 75 preempted, 77 device.
int ExitCode(ErrorCode code) noexcept;

// "config", "peer_lost", ...: stable, for logs and summary.json.
const char* Name(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

namespace internal {

// Out of line, so that a check costs its caller one compare and one cold call.
[[noreturn]] void ThrowError(ErrorCode code, const std::string& message);
[[noreturn]] void ThrowInternal(const char* file, int line, const char* condition,
                                const std::string& message);
[[noreturn]] void ThrowFailure(const char* file, int line, const std::string& message);
[[noreturn]] void ThrowComparison(const char* file, int line, const char* expression,
                                  const std::string& left, const std::string& right,
                                  const std::string& message);

template <typename T>
std::string Printed(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return fmt::format("{}", static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return fmt::format("{}", static_cast<const void*>(value));
  } else {
    return fmt::format("{}", value);
  }
}

}  // namespace internal
}  // namespace millrace

#define MR_CHECK(condition, ...)                                          \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::millrace::internal::ThrowInternal(__FILE__, __LINE__, #condition, \
                                          ::fmt::format(__VA_ARGS__));    \
  } while (false)

#define MR_FAIL(...) \
  ::millrace::internal::ThrowFailure(__FILE__, __LINE__, ::fmt::format(__VA_ARGS__))

#define MR_REQUIRE(code, condition, ...)                                    \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::millrace::internal::ThrowError((code), ::fmt::format(__VA_ARGS__)); \
  } while (false)

// Each operand is evaluated once; both values are printed.
#define MR_CHECK_COMPARE(left, op, right, ...)                                                  \
  do {                                                                                          \
    const auto& mr_left = (left);                                                               \
    const auto& mr_right = (right);                                                             \
    if (!(mr_left op mr_right)) [[unlikely]]                                                    \
      ::millrace::internal::ThrowComparison(                                                    \
          __FILE__, __LINE__, #left " " #op " " #right, ::millrace::internal::Printed(mr_left), \
          ::millrace::internal::Printed(mr_right), ::fmt::format(__VA_ARGS__));                 \
  } while (false)

#define MR_CHECK_EQ(left, right, ...) MR_CHECK_COMPARE(left, ==, right, __VA_ARGS__)
#define MR_CHECK_NE(left, right, ...) MR_CHECK_COMPARE(left, !=, right, __VA_ARGS__)
#define MR_CHECK_LE(left, right, ...) MR_CHECK_COMPARE(left, <=, right, __VA_ARGS__)
#define MR_CHECK_LT(left, right, ...) MR_CHECK_COMPARE(left, <, right, __VA_ARGS__)
#define MR_CHECK_GE(left, right, ...) MR_CHECK_COMPARE(left, >=, right, __VA_ARGS__)
#define MR_CHECK_GT(left, right, ...) MR_CHECK_COMPARE(left, >, right, __VA_ARGS__)
