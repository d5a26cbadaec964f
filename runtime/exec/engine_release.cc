// The engine's arena without its memory, for a while: what goes, what is kept, what is made again.
#include <chrono>
#include <functional>
#include <utility>

#include "comm/agree.h"
#include "comm/comm_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/arena/arena_view.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/executor.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What may fail on one rank fails on all, before anything has changed; `undo` is for those that
// could.
void OnAllRanks(Communicator& world, const std::function<void()>& step,
                const std::function<void()>& undo) {
  bool done = false;
  const std::optional<RankFailure> failure = FirstFailure(world, [&] {
    step();
    done = true;
  });
  if (!failure) return;
  if (done) undo();
  throw Error(failure->error.code(),
              fmt::format("rank {}: {}", failure->rank, failure->error.what()));
}

// Of a part, with room on the host for what cannot be made again.
ReleasedArena ReleasedOf(ArenaPart part, const StateLayout& states, const StateValidity& validity,
                         int64_t arena_bytes, Device& device) {
  ReleasedArena released{part, PagesOf(part, states, arena_bytes, device.PageBytes()), {}, nullptr};
  int64_t end = 0;
  for (const BufferId id : states.ids()) {
    const StateTensor& state = states.tensor(id);
    if (state.scope != StateScope::kRun || state.writer == StateWriter::kPrologue ||
        !validity.valid(id) || !Touches(released.pages, state.offset, state.offset + state.bytes()))
      continue;
    released.kept.push_back({id, end});
    end += RoundUp(state.bytes(), kArenaAlignment);
  }
  if (end > 0) released.host = device.AllocateHost(end, "states of a released arena");
  return released;
}

}  // namespace

void Engine::RequireArena() const {
  MR_REQUIRE(ErrorCode::kInvalidArgument, !released_,
             "the arena's memory is released ({}): Acquire() brings it back",
             Name(released_->part));
}

MovedMemory Engine::Release(ArenaPart part) {
  const Clock::time_point begin = Clock::now();
  MR_REQUIRE(ErrorCode::kInvalidArgument, why_kept_.empty(),
             "the arena's memory cannot be released: {}", why_kept_);
  MR_REQUIRE(ErrorCode::kInvalidArgument, !released_,
             "the arena's memory is released already ({}): Acquire() comes first",
             Name(released_->part));
  MR_REQUIRE(ErrorCode::kInvalidArgument, steps_in_flight() == 0,
             "{} steps are in flight, and use the memory: collect them first", steps_in_flight());
  host_copies_.Flush();  // a run of an era may be collected behind it
  executor_->Sync();
  ReleasedArena released;
  OnAllRanks(
      context_.comms->world(),
      [&] {
        released = ReleasedOf(part, plans_.states, validity_, arena_->bytes(), *context_.device);
      },
      [] {});
  Stream& compute = stream(StreamId::kCompute);
  MovedMemory moved;
  for (const ReleasedArena::Kept& kept : released.kept) {
    const TensorView view = StateView(kept.state);
    context_.device->EnqueueToHost(released.host->data() + kept.at, view.data, view.bytes(),
                                   compute);
    moved.host_bytes += view.bytes();
  }
  compute.Sync();
  for (const ByteRange& range : released.pages) pages_->Unmap(range.begin, range.end);
  for (const BufferId id : plans_.states.ids()) {
    const StateTensor& state = plans_.states.tensor(id);
    if (state.writer == StateWriter::kPrologue &&
        Touches(released.pages, state.offset, state.offset + state.bytes()))
      validity_.Lose(id);
  }
  validity_.LoseCarried();
  moved.bytes = released.bytes();
  released_ = std::move(released);
  moved.seconds = SecondsSince(begin);
  return moved;
}

MovedMemory Engine::Acquire() {
  const Clock::time_point begin = Clock::now();
  MR_REQUIRE(ErrorCode::kInvalidArgument, released_.has_value(),
             "nothing of the arena's memory is released");
  size_t mapped = 0;
  const auto unmap = [&] {
    while (mapped > 0) {
      const ByteRange& range = released_->pages[--mapped];
      pages_->Unmap(range.begin, range.end);
    }
  };
  OnAllRanks(
      context_.comms->world(),
      [&] {
        try {
          for (; mapped < released_->pages.size(); ++mapped)
            pages_->Map(released_->pages[mapped].begin, released_->pages[mapped].end);
        } catch (...) {
          unmap();
          throw;
        }
      },
      unmap);
  const ReleasedArena released = std::exchange(released_, std::nullopt).value();
  Stream& compute = stream(StreamId::kCompute);
  // Who watches bytes finds none that nobody has written.
  if (options_.checked || options_.adversary_seed)
    for (const ByteRange& range : released.pages)
      context_.device->EnqueueFill(arena_->data() + range.begin, kPoison, range.end - range.begin,
                                   compute);
  MovedMemory moved{.bytes = released.bytes()};
  for (const ReleasedArena::Kept& kept : released.kept) {
    const TensorView view = StateView(kept.state);
    context_.device->EnqueueFromHost(view.data, released.host->data() + kept.at, view.bytes(),
                                     compute);
    moved.host_bytes += view.bytes();
  }
  compute.Sync();
  moved.seconds = SecondsSince(begin);
  return moved;
}

}  // namespace millrace
