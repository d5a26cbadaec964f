#include "runtime/plan/check/access_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/plan/check/stay_tracker.h"

namespace millrace {
namespace {

struct RawAccess {
  CellAccess access;
  int64_t begin = 0, end = 0;     // bytes of the arena
  int64_t stride = 0, width = 0;  // of kPart: Columns that begin at `begin`
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
    const Body& of = plan_.bodies[static_cast<size_t>(body)];
    position_ = of.begin + op;
    found_.clear();
    const KernelOp& kernel = of.ops[static_cast<size_t>(op)].op;
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
        ScanOperand(kernel, view, access, operand);
      });
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
    if (!plan_.Has(id)) {
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
    found_.push_back(
        {{id, static_cast<int32_t>(interval), {}, effect, -1, operand}, base + begin, base + end});
  }

  void AddView(const View& view, std::string_view operand, Effect effect) {
    const int64_t size = Bytes(view.layout.dtype);
    const int64_t first = view.FirstOn(mesh_, rank_);
    int64_t last =
        first + view.layout.span_bytes() / size + view.microbatch_stride * (accumulate_ - 1);
    if (plan_.Has(view.buffer) && plan_.buffer(view.buffer).by_parity)
      last += view.layout.dtype == DType::kI32 ? parity_ : values_parity_;
    Add(view.buffer, operand, effect, first, last, view.layout.dtype);
  }

  void ScanOperand(const KernelOp& kernel, const View& view, Access access,
                   std::string_view operand) {
    if (Reads(access)) AddView(view, operand, Effect::kRead);
    if (access == Access::kScratch) AddView(view, operand, Effect::kScratch);
    if (access == Access::kAccumulate) AddView(view, operand, Effect::kDefine);
    if (access == Access::kWrite) ScanWrite(kernel, view, operand);
  }

  // A strided write that leaves holes in its span, which no other view of the op fills,
  // keeps what the holes hold.
  void ScanWrite(const KernelOp& kernel, const View& view, std::string_view operand) {
    if (!HasHoles(view) || FillsWithOthers(kernel, view))
      return AddView(view, operand, Effect::kDefine);
    const std::optional<Columns> columns = PartOf(view);
    if (!columns) AddView(view, operand, Effect::kRead);
    const size_t before = found_.size();
    AddView(view, operand, columns ? Effect::kPart : Effect::kDefine);
    if (!columns || found_.size() == before) return;
    found_.back().stride = columns->stride;
    found_.back().width = columns->width;
  }

  std::optional<Columns> PartOf(const View& view) const {
    if (plan_.Has(view.buffer) && plan_.buffer(view.buffer).by_parity) return std::nullopt;
    return ColumnsOf(view);
  }

  // Does the op write all of the rows of which it writes `view`?
  bool FillsWithOthers(const KernelOp& kernel, const View& view) const {
    std::vector<Columns> parts;
    int64_t views = 0, written = 0, begin = view.offset, end = view.offset;
    ForEachUse(kernel, [&](const View& other, Access access, std::string_view) {
      if (access != Access::kWrite || other.buffer != view.buffer) return;
      ++views;
      if (const std::optional<Columns> part = HasHoles(other) ? PartOf(other) : std::nullopt)
        parts.push_back(*part);
      written += other.layout.numel();
      begin = std::min(begin, other.offset);
      end = std::max(end, other.offset + other.layout.span_bytes() / Bytes(other.layout.dtype));
    });
    return std::ssize(parts) == views ? Tile(std::move(parts)) : written >= end - begin;
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

// f(part) for each part of `range` that is in `apart`, which is sorted and disjoint.
template <class F>
void ForEachPart(const std::vector<ByteRange>& apart, const ByteRange& range, F&& f) {
  auto at = std::upper_bound(apart.begin(), apart.end(), range.begin,
                             [](int64_t byte, const ByteRange& a) { return byte < a.end; });
  for (; at != apart.end() && at->begin < range.end; ++at)
    f(ByteRange{std::max(at->begin, range.begin), std::min(at->end, range.end)});
}

struct OpAt {
  int body, op;
};

// Ops that may touch other bytes on other ranks.
std::vector<OpAt> OpsByRank(const StepPlan& plan) {
  std::vector<OpAt> ops;
  for (size_t b = 0; b < plan.bodies.size(); ++b) {
    for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o) {
      const KernelOp& op = plan.bodies[b].ops[o].op;
      const auto* gather = std::get_if<AllGatherOp<View>>(&op);
      bool by_rank = gather != nullptr && !gather->shard;  // reads the rank's own slice
      ForEachUse(op, [&](const View& view, Access, std::string_view) {
        by_rank = by_rank || view.rank_stride != 0;
      });
      if (by_rank) ops.push_back({static_cast<int>(b), static_cast<int>(o)});
    }
  }
  return ops;
}

// The bytes that some of the ops touches on one of the two ranks otherwise than on the other.
std::vector<ByteRange> BytesApart(const std::vector<OpAt>& ops, OpScan one, OpScan other) {
  std::vector<ByteRange> apart;
  for (const OpAt& at : ops) {
    const std::vector<RawAccess>& here = one.Scan(at.body, at.op);
    const std::vector<RawAccess>& there = other.Scan(at.body, at.op);
    if (here.size() != there.size()) continue;  // a problem of one of them
    for (size_t i = 0; i < here.size(); ++i) {
      if (here[i].begin == there[i].begin && here[i].end == there[i].end) continue;
      apart.push_back({here[i].begin, here[i].end});
      apart.push_back({there[i].begin, there[i].end});
    }
  }
  return Merged(std::move(apart));
}

}  // namespace

AccessTable::AccessTable(const StepPlan& plan, const Mesh& mesh, int accumulate,
                         std::vector<int> ranks, Violations* problems)
    : ranks_(std::move(ranks)), span_(plan.arena_bytes + 1), apart_(ranks_.size()) {
  const std::vector<ByteRange> ranges = Collect(plan, mesh, accumulate, problems);
  // Ops touch the same bytes again and again: numbered by a table as they come, then in order.
  std::unordered_map<int64_t, CellId> met;
  met.reserve(ranges.size() / 2);
  IdVector<CellId, int64_t> byte_of;  // as they come
  const auto cut = [&](int64_t byte) {
    const auto [it, fresh] = met.try_emplace(byte);
    if (fresh) it->second = byte_of.push_back(byte);
    return it->second;
  };
  for (size_t i = 0; i < ranges.size(); ++i) {
    accesses_[i].cells.first = cut(ranges[i].begin);
    accesses_[i].cells.last = cut(ranges[i].end);
  }
  for (size_t k = 1; k < ranks_.size(); ++k)
    for (const ByteRange& range : apart_[k])
      for (const ByteRange& on : {range, Shifted(range, k)}) cut(on.begin), cut(on.end);
  // A state is more than what these ops touch of it.
  for (const PlanBuffer& buffer : plan.buffers)
    if (IsState(buffer.scope) && !buffer.offsets.empty())
      cut(buffer.offsets.front()), cut(buffer.offsets.front() + buffer.bytes);
  std::vector<std::pair<int64_t, CellId>> order;  // byte, as which it was met
  for (const CellId c : byte_of.ids()) order.emplace_back(byte_of[c], c);
  std::sort(order.begin(), order.end());
  IdVector<CellId, CellId> cell(byte_of.size());
  for (const auto& [byte, met_as] : order) cell[met_as] = cuts_.push_back(byte);
  for (CellAccess& access : accesses_)
    access.cells = {cell[access.cells.first], cell[access.cells.last]};
}

std::vector<ByteRange> AccessTable::Collect(const StepPlan& plan, const Mesh& mesh, int accumulate,
                                            Violations* problems) {
  const auto scan_on = [&](int rank, Violations* found) {
    return OpScan(plan, mesh, accumulate, rank, found);
  };
  Violations of_others, known;  // known: found again below
  OpScan first = scan_on(ranks_.front(), problems);
  std::vector<OpScan> others;
  const std::vector<OpAt> by_rank = ranks_.size() > 1 ? OpsByRank(plan) : std::vector<OpAt>();
  for (size_t k = 1; k < ranks_.size(); ++k) {
    apart_[k] = BytesApart(by_rank, scan_on(ranks_.front(), &known), scan_on(ranks_[k], &known));
    others.push_back(scan_on(ranks_[k], &of_others));
  }
  size_t ops = 0;
  for (const Body& body : plan.bodies) ops += body.ops.size();
  std::vector<ByteRange> ranges;
  ranges.reserve(5 * ops);  // about
  accesses_.reserve(5 * ops);
  starts_.reserve(ops + 1);
  starts_.push_back(0);
  const auto add = [&](const RawAccess& raw, const ByteRange& range, size_t k) {
    accesses_.push_back(raw.access);
    ranges.push_back(Shifted(range, k));
    if (raw.access.effect != Effect::kPart) return;
    accesses_.back().columns = static_cast<int32_t>(columns_.size());
    columns_.push_back({Shifted({raw.begin, raw.end}, k).begin, raw.stride, raw.width});
  };
  auto next = by_rank.begin();
  for (int b = 0; b < static_cast<int>(plan.bodies.size()); ++b) {
    first_op_.push_back(static_cast<int32_t>(starts_.size()) - 1);
    for (int o = 0; o < static_cast<int>(plan.bodies[static_cast<size_t>(b)].ops.size()); ++o) {
      const std::vector<RawAccess>& here = first.Scan(b, o);
      for (const RawAccess& raw : here) add(raw, {raw.begin, raw.end}, 0);
      const bool differs = next != by_rank.end() && next->body == b && next->op == o;
      if (differs) ++next;
      for (size_t k = 1; k < ranks_.size(); ++k)
        for (const RawAccess& raw : differs ? others[k - 1].Scan(b, o) : here)
          ForEachPart(apart_[k], {raw.begin, raw.end},
                      [&](const ByteRange& part) { add(raw, part, k); });
      starts_.push_back(static_cast<int32_t>(accesses_.size()));
    }
  }
  if (problems->empty()) *problems = std::move(of_others);
  return ranges;
}

std::vector<ByteRange> AccessTable::On(size_t k, const ByteRange& range) const {
  std::vector<ByteRange> parts;
  int64_t at = range.begin;  // up to which the range is in `parts`
  const auto shared = [&](int64_t end) {
    if (at < end) parts.push_back({at, end});
  };
  ForEachPart(apart_[k], range, [&](const ByteRange& part) {
    shared(part.begin);
    parts.push_back(Shifted(part, k));
    at = part.end;
  });
  shared(range.end);
  return parts;
}

IdRange<CellId> AccessTable::CellsIn(const ByteRange& range) const {
  const auto at = [&](int64_t byte) {
    return CellId{
        static_cast<int32_t>(std::lower_bound(cuts_.begin(), cuts_.end(), byte) - cuts_.begin())};
  };
  return {at(range.begin), std::min(at(range.end), CellId{static_cast<int32_t>(cells())})};
}

std::string DescribeAt(const StepPlan& plan, int body_index, int op_index) {
  const Body& body = plan.bodies[static_cast<size_t>(body_index)];
  const PlanOp& op = body.ops[static_cast<size_t>(op_index)];
  return fmt::format("{} {}: {} {} {}", body.name, op_index, Name(op.stream), OpName(op.op),
                     op.label);
}

}  // namespace millrace
