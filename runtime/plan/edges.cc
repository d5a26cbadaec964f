// Cross-stream edges, derived from the bytes that ops touch. The schedule is walked once in issue order with, per byte range of the arena, the
// last writer and the readers since; an access that conflicts with one on another stream waits for it, unless what its stream already
// waited for implies it (a vector clock per op decides). The checker proves the result with code of its own.
#include <algorithm>
#include <array>
#include <map>

#include "runtime/plan/step_builder.h"

namespace millrace {
namespace {

using Clock = std::array<int32_t, kStreams>;  // per stream: index (in issue order) of the last op known to have finished; -1 none

struct Issued {
  int32_t entry = 0, op = 0;
  StreamId stream = StreamId::kCompute;
  Clock clock{-1, -1, -1};  // known finished when this op begins
};

// Accesses of a byte range since its last write: issue indices, -1 none.
struct Segment {
  int64_t end = 0;
  int32_t writer = -1;
  Clock readers{-1, -1, -1};
};

class Deriver {
 public:
  Deriver(StepPlan& plan, int world, int accumulate) : plan_(plan), world_(world), accumulate_(accumulate) {
    segments_[0] = {plan.arena_bytes, -1, {-1, -1, -1}};
  }

  void Run(std::vector<Entry>& schedule) {
    for (size_t e = 0; e < schedule.size(); ++e) {
      Entry& entry = schedule[e];
      entry.edges.clear();
      const Body& body = plan_.bodies[static_cast<size_t>(entry.body)];
      for (size_t o = 0; o < body.ops.size(); ++o) Step(entry, static_cast<int32_t>(e), body, static_cast<int32_t>(o));
    }
  }

 private:
  void Step(Entry& entry, int32_t entry_index, const Body& body, int32_t op_index) {
    const PlanOp& op = body.ops[static_cast<size_t>(op_index)];
    const auto self = static_cast<int32_t>(issued_.size());
    Issued now{entry_index, op_index, op.stream, {-1, -1, -1}};
    const auto s = static_cast<size_t>(op.stream);
    if (last_on_[s] >= 0) {
      now.clock = issued_[static_cast<size_t>(last_on_[s])].clock;
      now.clock[s] = last_on_[s];
    }
    needed_ = {-1, -1, -1};
    ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
      Touch(BytesOf(plan_, view, body.begin + op_index, world_, accumulate_), Writes(access), self, op.stream);
    });
    // The latest op of each other stream implies the earlier ones; take streams in order of how recent they are, so that a wait which another
    // implies is dropped.
    std::array<int32_t, kStreams> waits = needed_;
    std::sort(waits.begin(), waits.end(), std::greater<>());
    for (int32_t wait : waits) {
      if (wait < 0) continue;
      const Issued& from = issued_[static_cast<size_t>(wait)];
      const auto fs = static_cast<size_t>(from.stream);
      if (from.stream == op.stream || now.clock[fs] >= wait) continue;
      entry.edges.push_back({from.entry, from.op, op_index});
      for (size_t i = 0; i < kStreams; ++i) now.clock[i] = std::max(now.clock[i], from.clock[i]);
      now.clock[fs] = std::max(now.clock[fs], wait);
    }
    last_on_[s] = self;
    issued_.push_back(now);
  }

  void Need(int32_t other, StreamId stream) {
    if (other < 0) return;
    const StreamId from = issued_[static_cast<size_t>(other)].stream;
    if (from == stream) return;
    int32_t& need = needed_[static_cast<size_t>(from)];
    need = std::max(need, other);
  }

  void Split(int64_t at) {
    if (at <= 0 || at >= plan_.arena_bytes) return;
    auto it = std::prev(segments_.upper_bound(at));
    if (it->first == at) return;
    Segment right = it->second;
    it->second.end = at;
    segments_.emplace_hint(std::next(it), at, right);
  }

  void Touch(ByteRange range, bool writes, int32_t self, StreamId stream) {
    if (range.begin >= range.end) return;
    Split(range.begin);
    Split(range.end);
    for (auto it = segments_.find(range.begin); it != segments_.end() && it->first < range.end; ++it) {
      Segment& segment = it->second;
      if (segment.writer != self) Need(segment.writer, stream);
      if (writes) {
        for (int32_t reader : segment.readers)
          if (reader != self) Need(reader, stream);
        segment.writer = self;
        segment.readers = {-1, -1, -1};
      } else {
        segment.readers[static_cast<size_t>(stream)] = self;
      }
    }
  }

  StepPlan& plan_;
  const int world_, accumulate_;
  std::map<int64_t, Segment> segments_;  // by first byte; they tile the arena
  std::vector<Issued> issued_;
  Clock last_on_{-1, -1, -1};
  Clock needed_{-1, -1, -1};
};

}  // namespace

void DeriveEdges(StepPlan& plan, int world, int accumulate) {
  if (plan.arena_bytes == 0) return;
  Deriver(plan, world, accumulate).Run(plan.schedule);
  Deriver(plan, world, accumulate).Run(plan.prologue);
}

}  // namespace millrace
