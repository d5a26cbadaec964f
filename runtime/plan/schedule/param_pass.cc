#include "runtime/plan/schedule/param_pass.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Positions at which each flat is read, ascending.
IdVector<FlatId, std::vector<int>> CollectReads(const StepBuilder& b) {
  IdVector<FlatId, std::vector<int>> all(b.layout.flats.size());
  int position = 0;
  const auto scan = [&](const std::vector<ProgramOp>& ops) {
    for (const ProgramOp& op : ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        const ProgramBuffer& buffer = b.program.buffer(view.buffer);
        if (buffer.role != ProgramRole::kParam) return;
        const FlatId flat = b.layout.param(buffer.param).flat;
        if (buffer.layout.dtype != b.GatheredAs(flat)) return;  // of the rest, which all ranks have
        std::vector<int>& reads = all[flat];
        if (reads.empty() || reads.back() != position) reads.push_back(position);
      });
      ++position;
    }
  };
  scan(b.program.forward);
  scan(b.program.backward);
  return all;
}

bool ReadWithin(const std::vector<int>& reads, const GatherSegment& segment) {
  const auto first = std::lower_bound(reads.begin(), reads.end(), segment.first);
  return first != reads.end() && *first <= segment.last;
}

}  // namespace

ParamPass::ParamPass(StepBuilder& builder, const std::vector<Reshard>& reshard, bool carry)
    : b_(builder), stays_of_flat_(b_.layout.flats.size()) {
  const IdVector<FlatId, std::vector<int>> reads = CollectReads(b_);
  std::vector<UnitUse> uses;
  IdVector<UnitId, std::vector<FlatId>> flats(b_.layout.units.size());  // that are gathered
  for (const UnitId unit : flats.ids())
    uses.push_back({unit,
                    b_.layout.unit(unit).role == UnitRole::kBlock,
                    reshard[static_cast<size_t>(unit.value)],
                    {}});
  for (const FlatId flat : reads.ids()) {
    if (Resident(flat)) continue;
    const UnitId unit = b_.layout.flat(flat).key.unit;
    flats[unit].push_back(flat);
    std::vector<int>& of_unit = uses[static_cast<size_t>(unit.value)].reads;
    of_unit.insert(of_unit.end(), reads[flat].begin(), reads[flat].end());
  }
  for (UnitUse& use : uses) {
    std::sort(use.reads.begin(), use.reads.end());
    use.reads.erase(std::unique(use.reads.begin(), use.reads.end()), use.reads.end());
  }
  GatherOptions options;
  options.prefetch = b_.options.prefetch;
  options.slots = b_.options.slots;
  options.forward_ops = static_cast<int>(b_.program.forward.size());
  options.ops = options.forward_ops + static_cast<int>(b_.program.backward.size());
  options.carry = carry;
  for (const GatherSegment& segment : PlanGathers(uses, options))
    for (const FlatId flat : flats[segment.unit])
      if (ReadWithin(reads[flat], segment)) AddStay(segment, flat);
  std::sort(issues_.begin(), issues_.end());
}

void ParamPass::AddStay(const GatherSegment& segment, FlatId id) {
  const FlatParam& flat = b_.layout.flat(id);
  Stay stay{segment, id, {}, {}, flat.name};
  std::vector<size_t>& of_flat = stays_of_flat_[id];
  const std::string suffix = of_flat.empty() ? "" : "#" + std::to_string(of_flat.size() + 1);
  const BufferScope scope = segment.carried      ? BufferScope::kCarried
                            : segment.whole_step ? BufferScope::kStep
                                                 : BufferScope::kMicrobatch;
  const DType gathered = b_.GatheredAs(id);
  BufferPlan how{PoolTag::kParam, id.value, segment.slot ? segment.unit : UnitId{}, gathered,
                 segment.whole_step};
  stay.bucket = b_.AddBuffer("bucket/" + flat.name + suffix, flat.padded_numel * Bytes(gathered),
                             BufferClass::kSlots, scope, how);
  if (b_.options.downcast == Downcast::kAfterGather && flat.key.encoding != DType::kF32 &&
      b_.Shards(id) > 1) {
    how.dtype = DType::kF32;
    how.group = -1;
    how.whole_step = false;
    stay.staging =
        b_.AddBuffer("staging/" + flat.name + suffix, flat.padded_numel * Bytes(DType::kF32),
                     BufferClass::kSlots, BufferScope::kMicrobatch, how);
  }
  issues_.emplace_back(segment.carried ? segment.carry_issue : segment.issue, stays_.size());
  of_flat.push_back(stays_.size());
  stays_.push_back(std::move(stay));
}

bool ParamPass::Resident(FlatId flat) const {
  return b_.in_era || IsResident(b_.layout, b_.options, flat);
}

View ParamPass::Resolve(const View& view, ParamId param, int position) const {
  const ParamPlacement& placement = b_.layout.param(param);
  View resolved = view;
  resolved.offset = placement.begin + view.offset;
  const FlatParam& flat = b_.layout.flat(placement.flat);
  const FlatEncodingRef& encoding = b_.encodings[placement.flat];
  if (encoding && view.layout.dtype == flat.key.encoding) {
    resolved.offset = RestBegin(*encoding, placement) + view.offset;
    resolved.buffer = b_.Slot(kRestSlot, placement.flat).buffer;
    return resolved;
  }
  MR_CHECK(view.layout.dtype == b_.GatheredAs(placement.flat),
           "parameter {} is read as {} but its gather encoding is {}", placement.spec.name,
           Name(view.layout.dtype), Name(b_.GatheredAs(placement.flat)));
  if (const View part = b_.in_era ? b_.Part(placement.flat) : View{};
      part && param == flat.params.back()) {
    MR_CHECK(view.offset == 0 && view.rank_stride == part.layout.numel(),
             "parameter {}, of which the era keeps {} elements, is read from {} on, {} further on "
             "each rank",
             placement.spec.name, part.layout.numel(), view.offset, view.rank_stride);
    resolved.buffer = part.buffer;
    resolved.offset = resolved.rank_stride = 0;
    return resolved;
  }
  if (Resident(placement.flat)) {
    const View gathered = b_.in_era ? b_.Gathered(placement.flat) : View{};
    if (gathered)
      resolved.buffer = gathered.buffer;
    else if (encoding)
      resolved.buffer = b_.Slot(kPayloadSlot, placement.flat).buffer;
    else
      resolved.buffer = (flat.key.encoding == DType::kF32 ? b_.Master(placement.flat)
                                                          : b_.Compute(placement.flat))
                            .buffer;
    return resolved;
  }
  for (const size_t s : StaysOf(placement.flat)) {
    const Stay& stay = stays_[s];
    if (position < stay.segment.first || position > stay.segment.last) continue;
    resolved.buffer = stay.bucket;
    return resolved;
  }
  MR_FAIL("no gathered bucket of {} covers position {}", flat.name, position);
}

View ParamPass::ResolveScales(const View& view, ParamId param) const {
  const ParamPlacement& placement = b_.layout.param(param);
  View resolved = view;
  resolved.buffer = b_.Slot(kScalesSlot, placement.flat).buffer;
  resolved.offset = ScalesBegin(*b_.encodings[placement.flat], placement) + view.offset;
  return resolved;
}

void ParamPass::EmitGather(Stay& stay) {
  const FlatId id = stay.flat;
  const FlatParam& flat = b_.layout.flat(id);
  const View master = b_.Master(id);
  const View compute = b_.Compute(id);
  const View bucket = WholeView(stay.bucket, b_.GatheredAs(id), flat.padded_numel);
  const bool gathers = b_.Shards(id) > 1;
  const auto fills = [&] {  // the op emitted next writes the bucket first
    if (stay.segment.carried)
      b_.produced[stay.bucket].emplace_back(static_cast<int>(b_.plan.bodies.size()) - 1,
                                            b_.position());
  };
  const auto cast = [&](const View& from, const View& to) {
    CastOp<View> op;
    op.x = from;
    op.out = to;
    b_.Emit(op, StreamId::kGather, "downcast/" + stay.name, flat.key.unit);
  };
  const auto gather = [&](const View& shard, const View& full) {
    AllGatherOp<View> op;
    op.shard = shard;
    op.full = full;
    op.axes = flat.shard;
    b_.Emit(op, StreamId::kGather, "gather/" + stay.name, flat.key.unit);
  };
  if (b_.options.downcast != Downcast::kAfterGather || flat.key.encoding == DType::kF32 || !gathers)
    fills();
  if (b_.encodings[id]) {
    gather(b_.Slot(kPayloadSlot, id), bucket);
  } else if (flat.key.encoding == DType::kF32) {
    gather(master, bucket);
  } else if (b_.options.downcast == Downcast::kAfterUpdate) {
    gather(compute, bucket);
  } else if (!gathers) {
    cast(master, bucket);
  } else if (b_.options.downcast == Downcast::kPerGather) {
    // The shard is cast straight into its own slice of the bucket, so that the collective's input
    // lives exactly as long as its output.
    cast(master, ShardSlice(bucket, flat));
    gather({}, bucket);
  } else if (b_.options.downcast == Downcast::kInGather) {
    gather(master, bucket);
  } else {
    const View staging = WholeView(stay.staging, DType::kF32, flat.padded_numel);
    gather(master, staging);
    fills();
    cast(staging, bucket);
  }
}

void ParamPass::EmitGathersAt(int position, bool first, bool more) {
  for (auto issue =
           std::lower_bound(issues_.begin(), issues_.end(), std::pair{position, size_t{0}});
       issue != issues_.end() && issue->first == position; ++issue) {
    Stay& stay = stays_[issue->second];
    const GatherSegment& segment = stay.segment;
    if (segment.carried ? more && !segment.whole_step : first || !segment.whole_step)
      EmitGather(stay);
  }
}

void ParamPass::EmitCarriedGathers(FlatId flat) {
  for (const size_t s : StaysOf(flat))
    if (stays_[s].segment.carried) EmitGather(stays_[s]);
}

std::vector<FlatId> ParamPass::order() const {
  std::vector<FlatId> flats;
  IdVector<FlatId, char> added(b_.layout.flats.size());
  const auto add = [&](FlatId flat) {
    if (!added[flat]) flats.push_back(flat);
    added[flat] = true;
  };
  for (const Stay& stay : stays_) add(stay.flat);
  for (const FlatId flat : b_.layout.flat_ids()) add(flat);
  return flats;
}

}  // namespace millrace
