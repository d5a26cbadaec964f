#include "runtime/api/c/agree_on.h"

#include <fmt/core.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <variant>
#include <vector>

#include "runtime/api/c/status.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Why a rank does not go on, as peers can be told.
using Refusal = std::variant<std::monostate, CallError, Error>;

// A rank that has no memory left for more says so.
Refusal RefusalOf(const std::exception_ptr& own) {
  if (!own) return {};
  try {
    std::rethrow_exception(own);
  } catch (const CallError& error) {
    return error;
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

// A letter for the kind, then the call; or of a refusal its code, a space, and its words.
constexpr char kGoesOn = 'g', kCallError = 'c', kError = 'e';

std::string Packed(const std::string& call, const Refusal& refusal) {
  if (const auto* error = std::get_if<CallError>(&refusal))
    return fmt::format("{}{} {}", kCallError, error->code(), error->what());
  if (const auto* error = std::get_if<Error>(&refusal))
    return fmt::format("{}{} {}", kError, static_cast<int>(error->code()), error->what());
  return kGoesOn + call;
}

[[noreturn]] void ThrowOf(size_t rank, const std::string& packed) {
  const size_t space = packed.find(' ');
  MR_REQUIRE(ErrorCode::kComm,
             (packed.starts_with(kCallError) || packed.starts_with(kError)) && space != packed.npos,
             "rank {} is in another exchange than this one: the ranks make other calls, or in "
             "another order",
             rank);
  const int code = std::atoi(packed.c_str() + 1);
  const std::string text = fmt::format("rank {}: {}", rank, packed.substr(space + 1));
  if (packed.front() == kCallError) throw CallError(code, text);
  throw Error(static_cast<ErrorCode>(code), text);
}

}  // namespace

void AgreeOn(Communicator& ranks, const std::string& call, const std::function<void()>& check,
             const std::function<void(const std::function<void()>&)>& talk) {
  std::exception_ptr own;
  try {
    check();
  } catch (...) {
    own = std::current_exception();
  }
  std::vector<std::string> all;
  talk([&] { all = ranks.HostAllGather(Packed(call, RefusalOf(own))); });
  if (own) std::rethrow_exception(own);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].starts_with(kGoesOn)) ThrowOf(rank, all[rank]);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("rank 0 is in {}, and rank {} in {}: every rank makes the same "
                                  "collective calls, in one order",
                                  all[0].substr(1), rank, all[rank].substr(1)));
}

}  // namespace millrace
