#include "runtime/plan/check/access_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>

namespace millrace {
namespace {

// The live range that holds the position; end: none. They are ascending and disjoint.
std::vector<Interval>::const_iterator LiveRangeAt(const PlanBuffer& buffer, int64_t position) {
  const auto after =
      std::upper_bound(buffer.live.begin(), buffer.live.end(), position,
                       [](int64_t at, const Interval& live) { return at < live.begin; });
  if (after == buffer.live.begin() || std::prev(after)->end <= position) return buffer.live.end();
  return std::prev(after);
}

struct RawAccess {
  CellAccess access;
  int64_t begin = 0, end = 0;  // bytes of the arena
};

// Accesses of one op at a time, in bytes.
class OpScan {
 public:
  OpScan(const StepPlan& plan, const Mesh& mesh, int accumulate, int rank, Violations* problems)
      : plan_(plan), mesh_(mesh), accumulate_(accumulate), rank_(rank), problems_(problems) {}

  // Reads first, then writes.
  const std::vector<RawAccess>& Scan(int body, int op) {
    body_ = body;
    op_ = op;
    position_ = plan_.bodies[static_cast<size_t>(body)].begin + op;
    found_.clear();
    const KernelOp& kernel =
        plan_.bodies[static_cast<size_t>(body)].ops[static_cast<size_t>(op)].op;
    parity_ = values_parity_ = 0;
    std::visit(
        [&](const auto& typed) {
          if constexpr (requires { typed.parity_stride; }) parity_ = typed.parity_stride;
          if constexpr (requires { typed.values_parity_stride; })
            values_parity_ = typed.values_parity_stride;
        },
        kernel);
    if (const auto* zero = std::get_if<ZeroRangesOp<View>>(&kernel)) {
      ScanZero(*zero);
    } else if (const auto* gather = std::get_if<AllGatherOp<View>>(&kernel);
               gather != nullptr && !gather->shard) {
      ScanInPlace(*gather);
    } else {
      ForEachUse(kernel, [&](const View& view, Access access, std::string_view operand) {
        ScanOperand(view, access, operand);
      });
      RequirePartlyWritten(kernel);
      CheckAliases(kernel);
    }
    // A few, already in order of issue: no buffer is allocated for them.
    for (auto end = found_.begin(); end != found_.end(); ++end)
      if (end->access.effect == Effect::kRead)
        std::rotate(
            std::find_if(found_.begin(), end,
                         [](const RawAccess& a) { return a.access.effect != Effect::kRead; }),
            end, std::next(end));
    return found_;
  }

 private:
  void Problem(ViolationKind kind, std::string_view operand, const std::string& what) {
    problems_->push_back(
        {kind, fmt::format("{}: {} {}", DescribeAt(plan_, body_, op_), operand, what)});
  }

  // Elements [first, last) of the buffer, of `dtype`.
  void Add(BufferId id, std::string_view operand, Effect effect, int64_t first, int64_t last,
           DType dtype) {
    if (first == last) return;
    if (!Exists(id)) {
      Problem(ViolationKind::kStructure, operand,
              fmt::format("names buffer {}, of {}", id.value, plan_.buffers.size()));
      return;
    }
    const PlanBuffer& buffer = plan_.buffer(id);
    const int64_t begin = first * Bytes(dtype), end = last * Bytes(dtype);
    if (begin < 0 || end > buffer.bytes) {
      Problem(ViolationKind::kBounds, operand,
              fmt::format("touches bytes [{}, {}) of {}, which has {} (rank {})", begin, end,
                          buffer.name, buffer.bytes, rank_));
      return;
    }
    const auto holds = LiveRangeAt(buffer, position_);
    if (holds == buffer.live.end()) {
      Problem(
          ViolationKind::kLifetime, operand,
          fmt::format("touches {} at position {}, where it is not live", buffer.name, position_));
      return;
    }
    if (buffer.offsets.size() != 1 && buffer.offsets.size() != buffer.live.size())
      return;  // reported with the buffer
    const auto interval = static_cast<size_t>(holds - buffer.live.begin());
    const int64_t base =
        buffer.offsets.size() == 1 ? buffer.offsets.front() : buffer.offsets[interval];
    found_.push_back({{id.value, static_cast<int32_t>(interval), 0, 0, effect, operand},
                      base + begin,
                      base + end});
  }

  bool Exists(BufferId id) const {
    return id.value >= 0 && static_cast<size_t>(id.value) < plan_.buffers.size();
  }

  void AddView(const View& view, std::string_view operand, Effect effect) {
    const int64_t size = Bytes(view.layout.dtype);
    const int64_t first = view.FirstOn(mesh_, rank_);
    int64_t last =
        first + view.layout.span_bytes() / size + view.microbatch_stride * (accumulate_ - 1);
    if (Exists(view.buffer) && plan_.buffer(view.buffer).by_parity)
      last += view.layout.dtype == DType::kI32 ? parity_ : values_parity_;
    Add(view.buffer, operand, effect, first, last, view.layout.dtype);
  }

  void ScanOperand(const View& view, Access access, std::string_view operand) {
    if (Reads(access)) AddView(view, operand, Effect::kRead);
    if (access == Access::kScratch) AddView(view, operand, Effect::kScratch);
    if (access == Access::kWrite || access == Access::kAccumulate)
      AddView(view, operand, Effect::kDefine);
  }

  void ScanZero(const ZeroRangesOp<View>& op) {
    for (const Range& range : *op.ranges) {
      if (range.begin < 0 || range.end > op.flat.layout.numel() || range.begin > range.end)
        Problem(ViolationKind::kBounds, "flat",
                fmt::format("zeroes elements [{}, {}) of {}", range.begin, range.end,
                            op.flat.layout.numel()));
      else
        Add(op.flat.buffer, "flat", Effect::kDefine, op.flat.offset + range.begin,
            op.flat.offset + range.end, op.flat.layout.dtype);
    }
  }

  void ScanInPlace(const AllGatherOp<View>& op) {
    const int64_t n = op.full.layout.numel() / mesh_.Size(op.axes);
    const int64_t own = op.full.offset + mesh_.Index(rank_, op.axes) * n;
    Add(op.full.buffer, "full", Effect::kRead, own, own + n, op.full.layout.dtype);
    AddView(op.full, "full", Effect::kDefine);
    if (op.scratch) AddView(op.scratch, "scratch", Effect::kScratch);
  }

  // A strided write that leaves holes in its span, which no other view of the op fills,
  // keeps what the holes hold.
  void RequirePartlyWritten(const KernelOp& kernel) {
    ForEachUse(kernel, [&](const View& view, Access access, std::string_view operand) {
      if (access != Access::kWrite ||
          view.layout.numel() * Bytes(view.layout.dtype) == view.layout.span_bytes())
        return;
      int64_t written = 0, begin = view.offset, end = view.offset;
      ForEachUse(kernel, [&](const View& other, Access other_access, std::string_view) {
        if (other_access != Access::kWrite || other.buffer != view.buffer) return;
        written += other.layout.numel();
        begin = std::min(begin, other.offset);
        end = std::max(end, other.offset + other.layout.span_bytes() / Bytes(other.layout.dtype));
      });
      if (written < end - begin) AddView(view, operand, Effect::kRead);
    });
  }

  // Operands of one op that share bytes, one of them written, are the same view; two
  // strided views may interleave.
  void CheckAliases(const KernelOp& kernel) {
    operands_.clear();
    ForEachUse(kernel, [&](const View& view, Access access, std::string_view name) {
      operands_.push_back({&view, access, name});
    });
    for (size_t i = 0; i < operands_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const View &a = *operands_[i].view, &b = *operands_[j].view;
        if (a.buffer != b.buffer || !(Writes(operands_[i].access) || Writes(operands_[j].access)))
          continue;
        if (a.offset == b.offset && a.layout == b.layout) continue;
        if (!a.layout.contiguous() && !b.layout.contiguous()) continue;
        const int64_t a_begin = a.offset * Bytes(a.layout.dtype),
                      b_begin = b.offset * Bytes(b.layout.dtype);
        if (a_begin < b_begin + b.layout.span_bytes() && b_begin < a_begin + a.layout.span_bytes())
          Problem(ViolationKind::kOverlap, operands_[i].name,
                  fmt::format("overlaps {} in part", operands_[j].name));
      }
    }
  }

  const StepPlan& plan_;
  const Mesh mesh_;
  const int accumulate_, rank_;
  Violations* problems_;
  int body_ = 0, op_ = 0;
  int64_t position_ = 0, parity_ = 0, values_parity_ = 0;
  std::vector<RawAccess> found_;
  struct Operand {
    const View* view;
    Access access;
    std::string_view name;
  };
  std::vector<Operand> operands_;  // of CheckAliases
};

}  // namespace

AccessTable::AccessTable(const StepPlan& plan, const Mesh& mesh, int accumulate, int rank,
                         Violations* problems) {
  OpScan scan(plan, mesh, accumulate, rank, problems);
  size_t ops = 0;
  for (const Body& body : plan.bodies) ops += body.ops.size();
  std::vector<ByteRange> ranges;  // by access
  ranges.reserve(5 * ops);        // about
  accesses_.reserve(5 * ops);
  starts_.reserve(ops + 1);
  starts_.push_back(0);
  for (size_t b = 0; b < plan.bodies.size(); ++b) {
    first_op_.push_back(static_cast<int32_t>(starts_.size()) - 1);
    for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o) {
      for (const RawAccess& raw : scan.Scan(static_cast<int>(b), static_cast<int>(o))) {
        accesses_.push_back(raw.access);
        ranges.push_back({raw.begin, raw.end});
      }
      starts_.push_back(static_cast<int32_t>(accesses_.size()));
    }
  }
  // Ops touch the same bytes again and again: numbered by a table, not each by a search.
  std::unordered_map<int64_t, int32_t> cell_of;
  cell_of.reserve(ranges.size() / 2);
  for (const ByteRange& range : ranges)
    for (const int64_t byte : {range.begin, range.end})
      if (cell_of.try_emplace(byte, 0).second) cuts_.push_back(byte);
  // A state is more than what these ops touch of it.
  for (const PlanBuffer& buffer : plan.buffers)
    if (IsState(buffer.scope) && !buffer.offsets.empty())
      for (const int64_t byte : {buffer.offsets.front(), buffer.offsets.front() + buffer.bytes})
        if (cell_of.try_emplace(byte, 0).second) cuts_.push_back(byte);
  std::sort(cuts_.begin(), cuts_.end());
  for (size_t c = 0; c < cuts_.size(); ++c) cell_of[cuts_[c]] = static_cast<int32_t>(c);
  const auto cell = [&](int64_t byte) { return cell_of.find(byte)->second; };
  for (size_t i = 0; i < ranges.size(); ++i) {
    accesses_[i].begin = cell(ranges[i].begin);
    accesses_[i].end = cell(ranges[i].end);
  }
}

std::pair<int, int> AccessTable::CellsIn(const ByteRange& range) const {
  const auto at = [&](int64_t byte) {
    return static_cast<int>(std::lower_bound(cuts_.begin(), cuts_.end(), byte) - cuts_.begin());
  };
  return {at(range.begin), std::min(at(range.end), cells())};
}

StayTracker::StayTracker(const StepPlan& plan)
    : plan_(&plan), last_(plan.buffers.size()), next_(static_cast<int32_t>(plan.buffers.size())) {}

void StayTracker::Enter(int body) { entered_.push_back(body); }

bool StayTracker::LiveThroughEnd(int32_t buffer, const Last& last) const {
  const Body& body = plan_->bodies[static_cast<size_t>(entered_[static_cast<size_t>(last.entry)])];
  return plan_->buffers[static_cast<size_t>(buffer)].live[static_cast<size_t>(last.interval)].end >=
         body.end();
}

bool StayTracker::LiveAllThrough(int32_t buffer, int body_index) const {
  const Body& body = plan_->bodies[static_cast<size_t>(body_index)];
  if (body.ops.empty()) return true;
  const PlanBuffer& of = plan_->buffers[static_cast<size_t>(buffer)];
  const auto live = LiveRangeAt(of, body.begin);
  return live != of.live.end() && body.end() <= live->end;
}

bool StayTracker::Continues(int32_t buffer) const {
  const Last& last = last_[static_cast<size_t>(buffer)];
  if (IsState(plan_->buffers[static_cast<size_t>(buffer)].scope)) return true;
  if (last.entry < 0 || !LiveThroughEnd(buffer, last)) return false;
  for (size_t e = static_cast<size_t>(last.entry) + 1; e < entered_.size(); ++e)
    if (!LiveAllThrough(buffer, entered_[e])) return false;
  return true;
}

int32_t StayTracker::Latest(int32_t buffer) const {
  if (IsState(plan_->buffers[static_cast<size_t>(buffer)].scope)) return buffer;
  return last_[static_cast<size_t>(buffer)].stay;
}

bool StayTracker::IsShifted(const StayTracker& before, int32_t stay, int32_t entry) const {
  const int32_t stays = count() - before.count(), entries = entered() - before.entered();
  return std::equal(before.last_.begin(), before.last_.end(), last_.begin(),
                    [&](Last was, const Last& is) {
                      if (was.stay >= stay) was.stay += stays;
                      if (was.entry >= entry) was.entry += entries;
                      return was == is;
                    });
}

int32_t StayTracker::StayOf(const CellAccess& access) {
  const PlanBuffer& buffer = plan_->buffers[static_cast<size_t>(access.buffer)];
  if (IsState(buffer.scope)) return access.buffer;
  Last& last = last_[static_cast<size_t>(access.buffer)];
  const auto now = static_cast<int32_t>(entered_.size()) - 1;
  bool same = last.entry == now && last.interval == access.interval;
  if (!same && last.entry >= 0 && last.entry != now) {
    // Live at the end of the body it was last seen in, in every body between, and at
    // the beginning of this one.
    same = LiveThroughEnd(access.buffer, last);
    for (int32_t e = last.entry + 1; same && e < now; ++e)
      same = LiveAllThrough(access.buffer, entered_[static_cast<size_t>(e)]);
    const int64_t begin = plan_->bodies[static_cast<size_t>(entered_.back())].begin;
    same = same && buffer.live[static_cast<size_t>(access.interval)].begin <= begin;
  }
  if (!same) last.stay = next_++;
  last.entry = now;
  last.interval = access.interval;
  return last.stay;
}

std::string DescribeAt(const StepPlan& plan, int body_index, int op_index) {
  const Body& body = plan.bodies[static_cast<size_t>(body_index)];
  const PlanOp& op = body.ops[static_cast<size_t>(op_index)];
  return fmt::format("{} {}: {} {} {}", body.name, op_index, Name(op.stream), OpName(op.op),
                     op.label);
}

}  // namespace millrace
