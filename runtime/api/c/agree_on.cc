#include "runtime/api/c/agree_on.h"

#include <fmt/core.h>

#include <exception>
#include <new>
#include <optional>

#include "comm/agree.h"
#include "runtime/api/c/status.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// In words that peers can be told. A rank that has no memory left for more says so.
Error ForPeers(const std::exception_ptr& own) {
  try {
    std::rethrow_exception(own);
  } catch (const CallError& error) {
    return Error(ErrorCode::kInvalidArgument, error.what());
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    return Error(ErrorCode::kInternal, "an exception of an unknown kind");
  }
}

}  // namespace

void AgreeOn(Communicator& ranks, const std::function<void()>& check,
             const std::function<void(const std::function<void()>&)>& talk) {
  std::exception_ptr own;
  try {
    check();
  } catch (...) {
    own = std::current_exception();
  }
  std::optional<RankFailure> failure;
  talk([&] {
    failure = FirstFailure(ranks, own ? std::optional<Error>(ForPeers(own)) : std::nullopt);
  });
  if (own) std::rethrow_exception(own);
  if (!failure) return;
  const std::string text = fmt::format("rank {}: {}", failure->rank, failure->error.what());
  if (failure->error.code() == ErrorCode::kInvalidArgument)
    throw CallError(MR_INVALID_ARGUMENT, text);
  throw Error(failure->error.code(), text);
}

}  // namespace millrace
