// The schedule is walked in issue order with, per byte range of the arena, the last writer and
// the readers since; an access that conflicts with one on another stream waits for it, unless what
// its stream already waited for implies it (a vector clock per op decides). The checker proves the
// result with code of its own.
//
// Microbatches between the first and the last run the same bodies. Once the walk's state after one
// of them is the state after the one before, moved on by one microbatch, the rest are not walked:
// their edges are the same, one microbatch later each. So the work does not grow with accumulation.
#include "runtime/plan/schedule/edges.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/id_vector.h"
#include "runtime/plan/schedule/stream_clock.h"

namespace millrace {
namespace {

struct Issued {
  int32_t entry = 0, op = 0;
  StreamId stream = StreamId::kCompute;
  // Known finished when this op begins: per stream the last op, by index in issue order; -1 none.
  StreamClock clock;
};

// Accesses of a byte range since its last write: issue indices, -1 none.
struct Segment {
  int64_t end = 0;
  int32_t writer = -1;
  StreamClock readers;
};

// Buffers that are one row per rank (the statistics): persistent, touched whole or through views of
// a cell in the own row, over the same axes. Two cells conflict on every rank or on none, so rank 0
// stands for all; widening them to every rank's row would order ops that share nothing.
IdVector<BufferId, char> RowsByRank(const StepPlan& plan) {
  IdVector<BufferId, int64_t> strides(plan.buffers.size());
  IdVector<BufferId, AxisSet> axes(plan.buffers.size());
  IdVector<BufferId, char> rows(plan.buffers.size());
  for (const BufferId id : rows.ids()) rows[id] = IsState(plan.buffer(id).scope);
  for (const Body& body : plan.bodies) {
    for (const PlanOp& op : body.ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        const BufferId id = view.buffer;
        const int64_t size = Bytes(view.layout.dtype);
        if (view.rank_stride == 0) {
          if (view.offset != 0 || view.layout.span_bytes() != plan.buffer(id).bytes)
            rows[id] = false;
          return;
        }
        int64_t& stride = strides[id];
        if (stride == 0) {
          stride = view.rank_stride * size;
          axes[id] = view.rank_axes;
        }
        if (stride != view.rank_stride * size || axes[id] != view.rank_axes ||
            view.rank_alike != 1 || view.offset * size + view.layout.span_bytes() > stride)
          rows[id] = false;
      });
    }
  }
  return rows;
}

// Of a flat gradient.
View Part(View flat, const Range& range) {
  flat.offset += range.begin;
  flat.layout = DenseLayout(flat.layout.dtype, {range.end - range.begin});
  return flat;
}

// Entries [begin, end()) run the same `period` bodies over and over.
struct Repetition {
  size_t begin = 0, period = 1, periods = 0;
  size_t end() const { return begin + period * periods; }
};

// The middle microbatches of a step. Two entries are a microbatch; longer periods are not looked
// for.
Repetition LongestRepetition(const std::vector<Entry>& schedule) {
  Repetition longest;
  for (size_t period = 1; period <= 2; ++period) {
    size_t equal = 0;  // entries before `e` that run what the one a period before them runs
    for (size_t e = period; e <= schedule.size(); ++e) {
      if (e < schedule.size() && schedule[e].body == schedule[e - period].body) {
        ++equal;
        continue;
      }
      const size_t periods = equal / period + 1;
      if (periods > 1 && period * periods > longest.end() - longest.begin)
        longest = {e - equal - period, period, periods};
      equal = 0;
    }
  }
  return longest;
}

class Deriver {
 public:
  // `rows`: RowsByRank.
  Deriver(StepPlan& plan, const Mesh& mesh, int accumulate, const IdVector<BufferId, char>& rows)
      : plan_(plan),
        mesh_(mesh),
        accumulate_(accumulate),
        rows_(rows),
        segments_{{0, {plan.arena_bytes, -1, {}}}},
        touched_first_(plan.buffers.size(), segments_.begin()) {}

  void Run(std::vector<Entry>& schedule) {
    const Repetition repeated = LongestRepetition(schedule);
    std::optional<Snapshot> before;  // at the end of the period before the present one
    for (size_t e = 0; e < schedule.size(); ++e) {
      if (e == repeated.begin) first_repeated_ = static_cast<int32_t>(issued_.size());
      if (e > repeated.begin && e < repeated.end() && (e - repeated.begin) % repeated.period == 0) {
        Snapshot now = TakeSnapshot();
        if (before && IsShifted(*before, now)) {
          e = Repeat(schedule, repeated, e);
          if (e == schedule.size()) return;
        } else {
          before = std::move(now);
        }
      }
      Entry& entry = schedule[e];
      entry.edges.clear();
      const Body& body = plan_.body(entry);
      for (size_t o = 0; o < body.ops.size(); ++o)
        Step(entry, static_cast<int32_t>(e), body, static_cast<int32_t>(o));
    }
  }

 private:
  // What later edges depend on, besides the clocks of issued ops.
  struct Snapshot {
    std::vector<std::pair<int64_t, Segment>> segments;
    StreamClock last_on;
    int32_t issued = 0;
  };

  Snapshot TakeSnapshot() const {
    return {{segments_.begin(), segments_.end()}, last_on_, static_cast<int32_t>(issued_.size())};
  }

  // Is `now` what `before` was, with every op since the repetition began a period later? What
  // follows then is the same again, a period later: the walk only compares issue indices, and the
  // shift keeps their order.
  bool IsShifted(const Snapshot& before, const Snapshot& now) const {
    const int32_t period = now.issued - before.issued;
    const auto shifted = [&](int32_t index) {
      return index < first_repeated_ ? index : index + period;
    };
    // An op that edges may still name: from before the repetition, or of the last period.
    const auto same = [&](int32_t was, int32_t is) {
      return shifted(was) == is && (is < first_repeated_ || is >= before.issued);
    };
    const auto same_clock = [&](const StreamClock& was, const StreamClock& is) {
      return std::equal(was.begin(), was.end(), is.begin(), same);
    };
    if (before.issued - period < first_repeated_ || !same_clock(before.last_on, now.last_on))
      return false;
    for (int32_t i = before.issued; i < now.issued; ++i) {
      const StreamClock &was = issued_[static_cast<size_t>(i - period)].clock,
                        &is = issued_[static_cast<size_t>(i)].clock;
      if (!std::equal(was.begin(), was.end(), is.begin(),
                      [&](int32_t w, int32_t n) { return shifted(w) == n; }))
        return false;
    }
    return std::equal(before.segments.begin(), before.segments.end(), now.segments.begin(),
                      now.segments.end(), [&](const auto& was, const auto& is) {
                        return was.first == is.first && was.second.end == is.second.end &&
                               same(was.second.writer, is.second.writer) &&
                               same_clock(was.second.readers, is.second.readers);
                      });
  }

  // Entries [next, end of the repetition) get the edges of the period before, a period later each.
  // The state is then that of the repetition's end. Returns the first entry behind it.
  size_t Repeat(std::vector<Entry>& schedule, const Repetition& repeated, size_t next) {
    const auto first = static_cast<int32_t>(repeated.begin),
               period = static_cast<int32_t>(repeated.period);
    for (size_t e = next; e < repeated.end(); ++e) {
      schedule[e].edges = schedule[e - repeated.period].edges;
      for (Edge& edge : schedule[e].edges)
        if (edge.from_entry >= first) edge.from_entry += period;
    }
    for (size_t i = static_cast<size_t>(first_repeated_); i < issued_.size(); ++i)
      issued_[i].entry += static_cast<int32_t>(repeated.end() - next);
    return repeated.end();
  }

  void Step(Entry& entry, int32_t entry_index, const Body& body, int32_t op_index) {
    const PlanOp& op = body.ops[static_cast<size_t>(op_index)];
    const auto self = static_cast<int32_t>(issued_.size());
    MR_CHECK(IsStream(op.stream), "{} of body {} is on stream {}, of {}", op.label, body.name,
             static_cast<int>(op.stream), kMostStreams);
    Issued now{entry_index, op_index, op.stream, {}};
    int32_t& last_on_stream = last_on_[op.stream];
    if (last_on_stream >= 0) {
      now.clock = issued_[static_cast<size_t>(last_on_stream)].clock;
      now.clock[op.stream] = last_on_stream;
    }
    needed_ = {};
    const auto touch = [&](const View& view, bool writes) {
      Touch(Touched(view, body.begin + op_index), view.buffer, writes, self, op.stream);
    };
    if (const auto* zero = std::get_if<ZeroRangesOp<View>>(&op.op)) {
      for (const Range& range : *zero->ranges) touch(Part(zero->flat, range), true);
    } else {
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        touch(view, Writes(access));
      });
    }
    // The latest op of each other stream implies the earlier ones; take streams in order of how
    // recent they are, so that a wait which another implies is dropped.
    waits_.assign(needed_.begin(), needed_.end());
    std::sort(waits_.begin(), waits_.end(), std::greater<>());
    for (int32_t wait : waits_) {
      if (wait < 0) continue;
      const Issued& from = issued_[static_cast<size_t>(wait)];
      if (from.stream == op.stream || now.clock[from.stream] >= wait) continue;
      entry.edges.push_back({from.entry, from.op, op_index});
      now.clock.Join(from.clock);
      now.clock.Join(from.stream, wait);
    }
    last_on_stream = self;
    issued_.push_back(now);
  }

  ByteRange Touched(View view, int64_t position) const {
    if (rows_[view.buffer]) view.rank_stride = 0;
    return BytesOf(plan_, view, position, mesh_, accumulate_);
  }

  void Need(int32_t other, StreamId stream) {
    if (other < 0) return;
    const StreamId from = issued_[static_cast<size_t>(other)].stream;
    if (from == stream) return;
    needed_.Join(from, other);
  }

  using Segments = std::map<int64_t, Segment>;

  // The segment of `it` ends at `at`, and another begins there, of the same accesses.
  Segments::iterator Split(Segments::iterator it, int64_t at) {
    const Segment right = it->second;
    it->second.end = at;
    return segments_.emplace_hint(std::next(it), at, right);
  }

  // The segment that begins at `begin`. Segments stay for ever, and an op mostly begins where the
  // one before it that used the buffer began.
  Segments::iterator Beginning(int64_t begin, BufferId buffer) {
    Segments::iterator& it = touched_first_[buffer];
    if (it->first == begin) return it;
    it = std::prev(segments_.upper_bound(begin));
    if (it->first != begin) it = Split(it, begin);
    return it;
  }

  void Touch(ByteRange range, BufferId buffer, bool writes, int32_t self, StreamId stream) {
    if (range.begin >= range.end) return;
    for (auto it = Beginning(range.begin, buffer); it != segments_.end() && it->first < range.end;
         ++it) {
      Segment& segment = it->second;
      if (segment.end > range.end) Split(it, range.end);
      if (segment.writer != self) Need(segment.writer, stream);
      if (writes) {
        for (int32_t reader : segment.readers)
          if (reader != self) Need(reader, stream);
        segment.writer = self;
        segment.readers = {};
      } else {
        segment.readers[stream] = self;
      }
    }
  }

  StepPlan& plan_;
  const Mesh mesh_;
  const int accumulate_;
  const IdVector<BufferId, char>& rows_;
  Segments segments_;  // by first byte; they tile the arena
  IdVector<BufferId, Segments::iterator> touched_first_;
  std::vector<Issued> issued_;
  int32_t first_repeated_ = 0;  // of the repetition's ops
  StreamClock last_on_, needed_;
  std::vector<int32_t> waits_;
};

}  // namespace

void DeriveEdges(StepPlan& plan, const Mesh& mesh, int accumulate) {
  if (plan.arena_bytes == 0) return;
  const IdVector<BufferId, char> rows = RowsByRank(plan);
  Deriver(plan, mesh, accumulate, rows).Run(plan.schedule);
  Deriver(plan, mesh, accumulate, rows).Run(plan.prologue);
}

}  // namespace millrace
