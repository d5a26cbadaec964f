#include "runtime/api/c/status.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "runtime/base/error.h"
#include "runtime/config/load.h"

namespace millrace {
namespace {

struct CodeName {
  int32_t code;
  const char* name;
};
constexpr std::array kCodes = {
    CodeName{MR_OK, "ok"},
    CodeName{MR_CONFIG, "config"},
    CodeName{MR_DATA, "data"},
    CodeName{MR_CHECKPOINT, "checkpoint"},
    CodeName{MR_DOES_NOT_FIT, "does_not_fit"},
    CodeName{MR_RELEASED, "released"},
    CodeName{MR_INVALID_ARGUMENT, "invalid_argument"},
    CodeName{MR_UNSUPPORTED, "unsupported"},
    CodeName{MR_BORROWED, "borrowed"},
    CodeName{MR_BUSY, "busy"},
    CodeName{MR_RUN_FAILED, "run_failed"},
    CodeName{MR_CALLBACK, "callback"},
    CodeName{MR_INTERNAL, "internal"},
    CodeName{MR_TIMEOUT, "timeout"},
    CodeName{MR_PEER_LOST, "peer_lost"},
    CodeName{MR_NON_FINITE, "non_finite"},
    CodeName{MR_IO, "io"},
    CodeName{MR_DEVICE, "device"},
};

const CodeName* Find(int32_t code) {
  const auto* found =
      std::find_if(kCodes.begin(), kCodes.end(), [&](const CodeName& c) { return c.code == code; });
  return found == kCodes.end() ? nullptr : found;
}

// What is said when there is no memory to say more.
mr_status* OutOfMemory() noexcept {
  static mr_status status{MR_DOES_NOT_FIT, 1, "out of memory", ""};
  return &status;
}

mr_status* New(int32_t code, const char* message, const char* pointer) noexcept {
  const size_t message_bytes = std::strlen(message) + 1, pointer_bytes = std::strlen(pointer) + 1;
  auto* const block =
      static_cast<char*>(std::malloc(sizeof(mr_status) + message_bytes + pointer_bytes));
  if (block == nullptr) return OutOfMemory();
  char* const texts = block + sizeof(mr_status);
  std::memcpy(texts, message, message_bytes);
  std::memcpy(texts + message_bytes, pointer, pointer_bytes);
  return new (block) mr_status{code, 0, texts, texts + message_bytes};
}

static_assert(std::is_trivially_destructible_v<mr_status>);

// Those of programs, but for a caller's mistake, which no program makes.
int32_t CodeOf(ErrorCode code) {
  return code == ErrorCode::kInvalidArgument ? static_cast<int32_t>(MR_INVALID_ARGUMENT)
                                             : ExitCode(code);
}

}  // namespace

mr_status* StatusOfCurrentException() noexcept {
  try {
    throw;
  } catch (const CallError& error) {
    return New(error.code(), error.what(), "");
  } catch (const ConfigError& error) {
    return New(MR_CONFIG, error.what(), error.pointer().c_str());
  } catch (const Error& error) {
    return New(CodeOf(error.code()), error.what(), "");
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& error) {
    return New(MR_INTERNAL, error.what(), "");
  } catch (...) {
    return New(MR_INTERNAL, "an exception of an unknown kind", "");
  }
}

}  // namespace millrace

using millrace::Find;

mr_status* mr_status_new(int32_t code, const char* message) {
  const bool known = Find(code) != nullptr && code != MR_OK;
  return millrace::New(known ? code : static_cast<int32_t>(MR_CALLBACK),
                       message == nullptr ? "" : message, "");
}

int32_t mr_status_code(const mr_status* status) {
  return status == nullptr ? static_cast<int32_t>(MR_OK) : status->code;
}

const char* mr_status_name(int32_t code) {
  const auto* found = Find(code);
  return found == nullptr ? "unknown" : found->name;
}

const char* mr_status_message(const mr_status* status) {
  return status == nullptr ? "" : status->message;
}

const char* mr_status_pointer(const mr_status* status) {
  return status == nullptr ? "" : status->pointer;
}

void mr_status_free(mr_status* status) {
  if (status != nullptr && status->is_static == 0) std::free(status);
}
