// The memory of a linked run's arena, gone for a while.
#include <fmt/core.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"

namespace millrace {
namespace {

ArenaPart PartOf(int32_t part) {
  switch (part) {
    case MR_PART_ERA:
      return ArenaPart::kEra;
    case MR_PART_COPIES:
      return ArenaPart::kCopies;
    case MR_PART_ALL:
      return ArenaPart::kAll;
    default:
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("part is {}; allowed are {} (era), {} (copies) and {} (all)",
                                  part, static_cast<int>(MR_PART_ERA),
                                  static_cast<int>(MR_PART_COPIES), static_cast<int>(MR_PART_ALL)));
  }
}

// A rank without room for it leaves all as they were, and the run goes on.
template <class F>
MovedMemory Moved(F&& move) {
  try {
    return move();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory) throw CallError(MR_DOES_NOT_FIT, error.what());
    throw;
  }
}

void Report(const MovedMemory& moved, mr_memory* result) {
  if (result == nullptr) return;
  WriteSized(mr_memory{.size = 0,
                       .bytes = moved.bytes,
                       .host_bytes = moved.host_bytes,
                       .seconds = moved.seconds},
             result);
}

CallError ReleasedError(ArenaPart part) {
  return CallError(MR_RELEASED, fmt::format("memory that this call needs is released ({}): "
                                            "mr_acquire brings it back",
                                            Name(part)));
}

}  // namespace

void LinkedRun::RequireArena() const {
  if (const auto* released = session_->engine().released()) throw ReleasedError(released->part);
}

void LinkedRun::RequireStates() const {
  const ReleasedArena* const released = session_->engine().released();
  if (released != nullptr && released->part == ArenaPart::kAll) throw ReleasedError(released->part);
}

void LinkedRun::RequireSamePart(int32_t part) {
  if (meeting_->world_size() == 1) return;
  std::vector<std::string> all;
  Touch([&] { all = meeting_->HostAllGather(std::to_string(part)); });
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != all.front())
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("part is {} on rank {}, and {} on rank 0: ranks release the same",
                                  all[r], r, all.front()));
}

void LinkedRun::Release(int32_t part, mr_memory* result) {
  Engine& engine = session_->engine();
  Agree("mr_release", [&] {
    if (result != nullptr) RequireSized(result, "result");
    RequireUsable();
    const ArenaPart wanted = PartOf(part);
    if (const ReleasedArena* const released = engine.released())
      throw CallError(MR_RELEASED,
                      fmt::format("memory is released already ({}): mr_acquire brings it back, and "
                                  "then another part can be released",
                                  Name(released->part)));
    if (const std::string& why = engine.WhyNotReleasable(); !why.empty())
      throw CallError(MR_UNSUPPORTED, "the arena's memory cannot be released: " + why);
    if (const int64_t lent = lent_; lent > 0 && wanted == ArenaPart::kAll)
      throw CallError(
          MR_BORROWED,
          fmt::format("{} {} of the weights {} lent, and would have no memory: call "
                      "the deleter of each first, or release another part",
                      lent, lent == 1 ? "tensor" : "tensors", lent == 1 ? "is" : "are"));
  });
  RequireSamePart(part);
  MovedMemory moved;
  Touch([&] {
    AwaitReaders();
    moved = Moved([&] { return engine.Release(PartOf(part)); });
  });
  Report(moved, result);
}

void LinkedRun::Acquire(mr_memory* result) {
  Engine& engine = session_->engine();
  Agree("mr_acquire", [&] {
    if (result != nullptr) RequireSized(result, "result");
    RequireUsable();
    if (engine.released() == nullptr)
      throw CallError(MR_INVALID_ARGUMENT, "no memory of the run is released");
  });
  MovedMemory moved;
  Touch([&] { moved = Moved([&] { return engine.Acquire(); }); });
  Report(moved, result);
}

}  // namespace millrace
