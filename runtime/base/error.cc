#include "runtime/base/error.h"

namespace millrace {

int ExitCode(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kConfig:
      return 2;
    case ErrorCode::kData:
      return 3;
    case ErrorCode::kCheckpoint:
      return 4;
    case ErrorCode::kDoesNotFit:
    case ErrorCode::kOutOfMemory:
      return 5;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInternal:
      return 70;
    case ErrorCode::kTimeout:
      return 71;
    case ErrorCode::kPeerLost:
    case ErrorCode::kComm:
      return 72;
    case ErrorCode::kNonFinite:
      return 73;
    case ErrorCode::kIo:
      return 74;
    case ErrorCode::kPreempted:
      return 75;
    case ErrorCode::kDevice:
      return 77;
  }
  return 70;
}

const char* Name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kComm:
      return "comm";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kCheckpoint:
      return "checkpoint";
    case ErrorCode::kDoesNotFit:
      return "does_not_fit";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kNonFinite:
      return "non_finite";
    case ErrorCode::kPreempted:
      return "preempted";
  }
  return "internal";
}

namespace internal {

void ThrowError(ErrorCode code, const std::string& message) { throw Error(code, message); }

void ThrowInternal(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorCode::kInternal,
              fmt::format("{}:{}: {} [failed: {}]", file, line, message, condition));
}

void ThrowFailure(const char* file, int line, const std::string& message) {
  throw Error(ErrorCode::kInternal, fmt::format("{}:{}: {}", file, line, message));
}

void ThrowComparison(const char* file, int line, const char* expression, const std::string& left,
                     const std::string& right, const std::string& message) {
  throw Error(ErrorCode::kInternal, fmt::format("{}:{}: {} [failed: {}, with {} and {}]", file,
                                                line, message, expression, left, right));
}

}  // namespace internal
}  // namespace millrace
