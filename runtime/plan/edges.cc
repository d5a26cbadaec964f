// The schedule is walked once in issue order with, per byte range of the arena, the last writer and
// the readers since; an access that conflicts with one on another stream waits for it, unless what
// its stream already waited for implies it (a vector clock per op decides). The checker proves the
// result with code of its own.
#include "runtime/plan/edges.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

namespace millrace {
namespace {

using Clock =
    std::array<int32_t, kStreams>;  // per stream: index (in issue order) of the last op known to
                                    // have finished; -1 none

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

// Buffers that are one row per rank (the statistics): persistent, touched whole or through views of
// a cell in the own row. Two cells conflict on every rank or on none, so rank 0 stands for all;
// widening them to every rank's row would order ops that share nothing.
std::vector<bool> RowsByRank(const StepPlan& plan) {
  std::vector<int64_t> stride(plan.buffers.size());
  std::vector<bool> rows(plan.buffers.size());
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = plan.buffers[i].scope == BufferScope::kPersistent;
  for (const Body& body : plan.bodies) {
    for (const PlanOp& op : body.ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        const size_t b = static_cast<size_t>(view.buffer.value);
        const int64_t size = Bytes(view.layout.dtype);
        if (view.rank_stride == 0) {
          if (view.offset != 0 || view.layout.span_bytes() != plan.buffers[b].bytes)
            rows[b] = false;
          return;
        }
        if (stride[b] == 0) stride[b] = view.rank_stride * size;
        if (stride[b] != view.rank_stride * size ||
            view.offset * size + view.layout.span_bytes() > stride[b])
          rows[b] = false;
      });
    }
  }
  return rows;
}

class Deriver {
 public:
  Deriver(StepPlan& plan, const MeshShape& mesh, int accumulate)
      : plan_(plan), mesh_(mesh), accumulate_(accumulate), rows_(RowsByRank(plan)) {
    segments_[0] = {plan.arena_bytes, -1, {-1, -1, -1}};
  }

  void Run(std::vector<Entry>& schedule) {
    for (size_t e = 0; e < schedule.size(); ++e) {
      Entry& entry = schedule[e];
      entry.edges.clear();
      const Body& body = plan_.bodies[static_cast<size_t>(entry.body)];
      for (size_t o = 0; o < body.ops.size(); ++o)
        Step(entry, static_cast<int32_t>(e), body, static_cast<int32_t>(o));
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
      Touch(Touched(view, body.begin + op_index), Writes(access), self, op.stream);
    });
    // The latest op of each other stream implies the earlier ones; take streams in order of how
    // recent they are, so that a wait which another implies is dropped.
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

  ByteRange Touched(View view, int64_t position) const {
    if (rows_[static_cast<size_t>(view.buffer.value)]) view.rank_stride = 0;
    return BytesOf(plan_, view, position, mesh_, accumulate_);
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
    for (auto it = segments_.find(range.begin); it != segments_.end() && it->first < range.end;
         ++it) {
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
  const MeshShape mesh_;
  const int accumulate_;
  const std::vector<bool> rows_;
  std::map<int64_t, Segment> segments_;  // by first byte; they tile the arena
  std::vector<Issued> issued_;
  Clock last_on_{-1, -1, -1};
  Clock needed_{-1, -1, -1};
};

}  // namespace

void DeriveEdges(StepPlan& plan, const MeshShape& mesh, int accumulate) {
  if (plan.arena_bytes == 0) return;
  Deriver(plan, mesh, accumulate).Run(plan.schedule);
  Deriver(plan, mesh, accumulate).Run(plan.prologue);
}

}  // namespace millrace
