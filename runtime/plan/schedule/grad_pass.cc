#include "runtime/plan/schedule/grad_pass.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// The part of a list, ascending by position, that is due at `position`.
template <class Id>
std::span<const std::pair<int, Id>> DueAt(const std::vector<std::pair<int, Id>>& list,
                                          int position) {
  const auto begin = std::lower_bound(list.begin(), list.end(), std::pair{position, Id{0}});
  const auto end = std::lower_bound(begin, list.end(), std::pair{position + 1, Id{0}});
  return {begin, end};
}

}  // namespace

GradPass::GradPass(StepBuilder& builder)
    : b_(builder), flats_(b_.layout.flats.size()), params_(b_.layout.params.size()) {
  FindContributions();
  for (const FlatId flat : flats_.ids()) {
    if (!b_.layout.flat(flat).key.trainable) {
      AddDiscarded(flat);
      continue;
    }
    flats_[flat].zero = ZeroedOf(flat);
    AddBucket(flat);
    final_.push_back(AddFinal(flat));
  }
  if (!direct()) AddParts();
}

void GradPass::FindContributions() {
  int position = 0;
  for (const std::vector<ProgramOp>* ops : {&b_.program.forward, &b_.program.backward})
    for (const ProgramOp& op : *ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        const ProgramBuffer& buffer = b_.program.buffer(view.buffer);
        if (buffer.role != ProgramRole::kParamGrad) return;
        std::vector<int>& contributions = params_[buffer.param].contributions;
        if (contributions.empty() || contributions.back() != position)
          contributions.push_back(position);
        FlatState& flat = flats_[b_.layout.param(buffer.param).flat];
        if (flat.first < 0) flat.first = position;
        flat.last = position;
      });
      ++position;
    }
  ops_ = position;
  for (const ParamId p : params_.ids())
    for (const int at : params_[p].contributions)
      if (IsTrained(p)) contributions_at_.emplace_back(at, p);
  for (const FlatId f : flats_.ids()) {
    FlatState& state = flats_[f];
    if (!b_.layout.flat(f).key.trainable) continue;
    if (state.first < 0) state.first = state.last = ops_ - 1;
    first_at_.emplace_back(state.first, f);
    last_at_.emplace_back(state.last, f);
  }
  std::sort(contributions_at_.begin(), contributions_at_.end());
  std::sort(first_at_.begin(), first_at_.end());
  std::sort(last_at_.begin(), last_at_.end());
}

RangeList GradPass::ZeroedOf(FlatId id) const {
  const FlatParam& flat = b_.layout.flat(id);
  auto zero = std::make_shared<std::vector<Range>>(flat.gaps);
  for (const ParamId param : flat.params) {
    const ParamPlacement& placement = b_.layout.param(param);
    if (!params_[param].used()) zero->push_back({placement.begin, placement.end});
  }
  std::sort(zero->begin(), zero->end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return zero;
}

// World 1 reads the final gradient from the bucket in the update; with shards it ends at the
// reduce-scatter.
void GradPass::AddBucket(FlatId id) {
  const FlatParam& flat = b_.layout.flat(id);
  const PrecisionPolicy precision = b_.layout.PrecisionOf(id);
  FlatState& state = flats_[id];
  const bool sharded = b_.Shards(id) > 1;
  // The bucket accumulates over the step.
  const bool step_bucket = !sync_every(id) && b_.options.grad_concat != GradConcat::kLast;
  const BufferScope scope = step_bucket || !sharded ? BufferScope::kStep : BufferScope::kMicrobatch;
  const PoolTag pool = scope == BufferScope::kMicrobatch ? PoolTag::kGrad : PoolTag::kNone;
  const UnitId unit = b_.layout.IsBlock(id) ? flat.key.unit : UnitId{};
  const BufferClass cls =
      scope == BufferScope::kStep ? BufferClass::kGradients : BufferClass::kSlots;
  const bool travels = b_.layout.mesh.Size(flat.shard | flat.replicas) > 1;
  const bool narrows = travels && Bytes(precision.grad_wire) < Bytes(precision.grad_accumulate);
  state.dtype = narrows && WrittenOnce(id) ? precision.grad_wire : precision.grad_accumulate;
  state.bucket = b_.AddBuffer("grad/" + flat.name, flat.padded_numel * Bytes(state.dtype), cls,
                              scope, {pool, -1, unit, state.dtype});
  if (!travels || precision.grad_wire == state.dtype) return;
  state.wire =
      b_.AddBuffer("grad_wire/" + flat.name, flat.padded_numel * Bytes(precision.grad_wire),
                   BufferClass::kSlots, sharded ? BufferScope::kMicrobatch : BufferScope::kStep,
                   {sharded ? PoolTag::kGrad : PoolTag::kNone, -1, unit, precision.grad_wire});
}

View GradPass::AddFinal(FlatId id) {
  const FlatParam& flat = b_.layout.flat(id);
  const DType wire = b_.layout.PrecisionOf(id).grad_wire;
  FlatState& state = flats_[id];
  if (b_.Shards(id) == 1)
    return state.wire ? WholeView(state.wire, wire, flat.padded_numel)
                      : WholeView(state.bucket, state.dtype, flat.padded_numel);
  // Summed once, the gradient stays as the wire delivers it; a sum of several reductions is f32.
  const DType dtype = reduced_once(id) ? wire : DType::kF32;
  if (!reduced_once(id))
    state.received = b_.AddBuffer("grad_received/" + flat.name, flat.shard_numel * Bytes(wire),
                                  BufferClass::kGradients, BufferScope::kMicrobatch);
  return WholeView(b_.AddBuffer("grad_shard/" + flat.name, flat.shard_numel * Bytes(dtype),
                                BufferClass::kGradients, BufferScope::kStep),
                   dtype, flat.shard_numel);
}

void GradPass::AddParts() {
  for (const ParamId p : params_.ids()) {
    if (!params_[p].used() || !IsTrained(p)) continue;
    const ParamPlacement& param = b_.layout.param(p);
    params_[p].part = b_.AddBuffer(
        "grad_part/" + param.spec.name, (param.end - param.begin) * Bytes(PartDType(param.flat)),
        BufferClass::kGradients,
        outlives_microbatch(p) ? BufferScope::kStep : BufferScope::kMicrobatch);
  }
}

bool GradPass::IsTrained(ParamId param) const {
  return b_.layout.flat(b_.layout.param(param).flat).key.trainable;
}

// What kernels form of a frozen flat beside other gradients: it ends with the microbatch.
void GradPass::AddDiscarded(FlatId flat) {
  final_.push_back({});
  FlatState& state = flats_[flat];
  if (state.first < 0) return;
  const FlatParam& of = b_.layout.flat(flat);
  state.dtype = b_.layout.PrecisionOf(flat).grad_accumulate;
  state.bucket = b_.AddBuffer("grad_discarded/" + of.name, of.padded_numel * Bytes(state.dtype),
                              BufferClass::kGradients, BufferScope::kMicrobatch);
}

bool GradPass::sync_every(FlatId flat) const {
  return b_.options.grad_sync == GradSync::kEvery && b_.Shards(flat) > 1;
}

bool GradPass::reduced_once(FlatId flat) const {
  return !sync_every(flat) || b_.options.accumulate == 1;
}

bool GradPass::outlives_microbatch(ParamId param) const {
  return IsTrained(param) && !sync_every(b_.layout.param(param).flat) &&
         b_.options.grad_concat != GradConcat::kEvery;
}

// Whether nothing is ever added to what a gradient kernel wrote into this flat's bucket before it
// is sent. A narrow wire then rounds what the kernel formed, and the kernel may as well do that
// itself: the same bits, without a bucket twice as wide and a cast of all of it.
bool GradPass::WrittenOnce(FlatId flat) const {
  if (!sync_every(flat) && b_.options.accumulate > 1) return false;
  const std::vector<ParamId>& params = b_.layout.flat(flat).params;
  return std::all_of(params.begin(), params.end(),
                     [&](ParamId param) { return params_[param].contributions.size() <= 1; });
}

// Every concat mode adds the same contributions in the same order and rounds as often: direct adds
// each to the bucket; last adds each to a part that holds the bucket's dtype; every forms each in
// f32, and adds it to the bucket by a concat of its own. Where there is one contribution it is
// formed in the bucket's dtype, by the same kernel in every mode.
DType GradPass::PartDType(FlatId flat) const {
  const DType accumulate = b_.layout.PrecisionOf(flat).grad_accumulate;
  if (b_.options.grad_concat == GradConcat::kLast || BucketDType(flat) != accumulate)
    return BucketDType(flat);
  return DType::kF32;
}

View GradPass::Resolve(const View& view, ParamId param) {
  View resolved = view;
  const ParamPlacement& placement = b_.layout.param(param);
  if (direct() || !IsTrained(param)) {
    resolved.buffer = flats_[placement.flat].bucket;
    resolved.offset = placement.begin + view.offset;
    resolved.layout.dtype = BucketDType(placement.flat);
    return resolved;
  }
  resolved.buffer = params_[param].part;
  resolved.layout.dtype = PartDType(placement.flat);
  return resolved;
}

View GradPass::Bucket(FlatId flat) const {
  return WholeView(flats_[flat].bucket, BucketDType(flat), b_.layout.flat(flat).padded_numel);
}

// Of this rank's row of the statistics.
View GradPass::Cell(int64_t column) const {
  View cell = b_.State("stats");
  cell.offset = column;
  cell.rank_stride = row().width;
  cell.rank_axes = AxisSet::All();
  cell.layout = DenseLayout(DType::kF64, {1});
  return cell;
}
View GradPass::sum_squares(FlatId flat) const { return Cell(row().sum_squares + flat.value); }
View GradPass::bad_count(FlatId flat) const { return Cell(row().bad_counts + flat.value); }
View GradPass::loss_sum(LossId loss) const { return Cell(row().losses + loss.value); }

void GradPass::Zero(FlatId flat) {
  const RangeList& ranges = flats_[flat].zero;
  if (ranges->empty()) return;
  ZeroRangesOp<View> op;
  op.flat = Bucket(flat);
  op.ranges = ranges;
  b_.Emit(op, StreamId::kCompute, "zero_gaps/" + b_.UnitLabel(flat), b_.layout.flat(flat).key.unit);
}

void GradPass::Concat(ParamId param, Update update) {
  const ParamPlacement& placement = b_.layout.param(param);
  ConcatOp<View> op;
  op.x = WholeView(params_[param].part, PartDType(placement.flat), placement.end - placement.begin);
  op.out = Bucket(placement.flat);
  op.out.offset = placement.begin;
  op.out.layout = DenseLayout(op.out.layout.dtype, {placement.end - placement.begin});
  op.update = update;
  b_.Emit(op, StreamId::kCompute, "concat/" + placement.spec.name, placement.unit);
}

void GradPass::ConcatAll(FlatId flat, bool fresh) {
  if (fresh) Zero(flat);
  for (ParamId param : b_.layout.flat(flat).params) {
    const ParamState& state = params_[param];
    if (!state.used()) continue;
    const bool alone = state.contributions.size() == 1 || !one_contribution_per_part();
    Concat(param, fresh && alone ? Update::kOverwrite : Update::kAccumulate);
  }
}

void GradPass::EmitBefore(int position, Variant variant) {
  if (!direct()) return;
  for (const auto& [at, flat] : DueAt(first_at_, position))
    if (sync_every(flat) || IsFirst(variant)) Zero(flat);
}

void GradPass::EmitAfter(int position, Variant variant) {
  const auto fresh = [&](FlatId flat) { return sync_every(flat) || IsFirst(variant); };
  if (one_contribution_per_part()) {
    // All but a parameter's last contribution make room for the next; the last waits for the
    // flat's.
    for (const auto& [due, p] : DueAt(contributions_at_, position)) {
      const std::vector<int>& at = params_[p].contributions;
      if (position == at.back()) continue;
      Concat(p, fresh(b_.layout.param(p).flat) && position == at.front() ? Update::kOverwrite
                                                                         : Update::kAccumulate);
    }
  }
  for (const auto& [due, flat] : DueAt(last_at_, position)) {
    const bool reduces = sync_every(flat) || IsLast(variant);
    if (b_.options.grad_concat == GradConcat::kEvery) ConcatAll(flat, fresh(flat));
    if (b_.options.grad_concat == GradConcat::kLast && reduces) ConcatAll(flat, true);
    if (reduces) Reduce(flat, variant);
  }
}

void GradPass::Reduce(FlatId flat, Variant variant) {
  const FlatParam& layout = b_.layout.flat(flat);
  const bool fresh = IsFirst(variant) || !sync_every(flat);  // nothing reduced yet in this step
  // Behind the step's last gradient there is nothing else to compute, while
  // other flats are still reduced.
  const bool idle = IsLast(variant) && flats_[flat].last == ops_ - 1;
  const StreamId ready = idle ? StreamId::kCompute : StreamId::kReduce;
  ReducePoint point{.body = static_cast<int>(b_.plan.bodies.size()) - 1,
                    .unit = layout.key.unit,
                    .buffers = {flats_[flat].wire ? flats_[flat].wire : flats_[flat].bucket}};
  const View sent = CastForWire(flat, ready, point);
  // Counts are no gradient: nothing of them is in its norm.
  const bool counts = layout.key.update == UpdateRule::kBalance;
  // What is sent is the gradient already: one pass has both.
  const bool at_once = IsLast(variant) && !counts && b_.Shards(flat) == 1 &&
                       b_.layout.mesh.Size(layout.replicas) == 1;
  Scan(flat, sent, ready, fresh, at_once);
  if (b_.Shards(flat) > 1) ReduceScatter(flat, sent, fresh, std::move(point));
  if (!IsLast(variant) || at_once) return;
  if (b_.layout.mesh.Size(layout.replicas) > 1) OuterReduce(flat);
  SumSquaresOp<View> norm;
  norm.x = final_[flat];
  if (counts) norm.x.layout = DenseLayout(DType::kF32, {0});
  norm.out = sum_squares(flat);
  b_.Emit(norm, StreamId::kReduce, "sum_squares/" + layout.name, layout.key.unit);
}

// The bucket as it is sent: cast, where the wire has another encoding.
View GradPass::CastForWire(FlatId flat, StreamId stream, ReducePoint& point) {
  const FlatState& state = flats_[flat];
  if (!state.wire) return Bucket(flat);
  const FlatParam& layout = b_.layout.flat(flat);
  if (stream == StreamId::kReduce) point.cast = b_.position();
  point.cast_from = state.bucket;
  CastOp<View> cast;
  cast.x = Bucket(flat);
  cast.out = WholeView(state.wire, b_.layout.PrecisionOf(flat).grad_wire, layout.padded_numel);
  b_.Emit(cast, stream, "wire_cast/" + layout.name, layout.key.unit);
  return cast.out;
}

void GradPass::Scan(FlatId flat, const View& sent, StreamId stream, bool fresh, bool with_norm) {
  const FlatParam& layout = b_.layout.flat(flat);
  FiniteScanOp<View> scan;
  scan.x = sent;
  scan.bad_count = bad_count(flat);
  if (with_norm) scan.squares = sum_squares(flat);
  scan.scalars = b_.State("scalars");
  scan.unit = flat.value;
  scan.inject_index = layout.params.empty() ? 0 : b_.layout.param(layout.params.front()).begin;
  scan.update = fresh ? Update::kOverwrite : Update::kAccumulate;
  b_.Emit(scan, stream, "finite_scan/" + layout.name, layout.key.unit);
}

void GradPass::ReduceScatter(FlatId flat, const View& sent, bool fresh, ReducePoint point) {
  const FlatParam& layout = b_.layout.flat(flat);
  const View result = final_[flat];
  const bool straight = result.layout.dtype == sent.layout.dtype && fresh;
  ReduceScatterOp<View> reduce;
  reduce.full = sent;
  reduce.axes = layout.shard;
  reduce.shard =
      straight ? result : WholeView(flats_[flat].received, sent.layout.dtype, layout.shard_numel);
  b_.Emit(reduce, StreamId::kReduce, "reduce/" + layout.name, layout.key.unit);
  point.op = b_.position() - 1;
  if (!straight) point.buffers.push_back(flats_[flat].received);
  b_.reduces.push_back(std::move(point));
  if (straight) return;
  AccumulateOp<View> accumulate;
  accumulate.x = reduce.shard;
  accumulate.out = result;
  accumulate.update = fresh ? Update::kOverwrite : Update::kAccumulate;
  b_.Emit(accumulate, StreamId::kReduce, "accumulate/" + layout.name, layout.key.unit);
}

void GradPass::EmitNoStatistics() {
  for (const FlatId flat : flats_.ids()) {
    if (b_.layout.flat(flat).key.trainable) continue;
    for (const View& cell : {sum_squares(flat), bad_count(flat)}) {
      SumSquaresOp<View> none;
      none.x = b_.Master(flat);
      none.x.layout = DenseLayout(DType::kF32, {0});
      none.out = cell;
      b_.Emit(none, StreamId::kReduce, "no_statistics/" + b_.layout.flat(flat).name,
              b_.layout.flat(flat).key.unit);
    }
  }
}

// Sums the final gradient over the replicas, in the wire's encoding.
void GradPass::OuterReduce(FlatId flat) {
  const FlatParam& layout = b_.layout.flat(flat);
  const View result = final_[flat];
  const DType wire = b_.layout.PrecisionOf(flat).grad_wire;
  AllReduceOp<View> outer;
  outer.buffer = result;
  outer.axes = layout.replicas;
  if (result.layout.dtype == wire) {
    b_.Emit(outer, StreamId::kReduce, "outer_reduce/" + layout.name, layout.key.unit);
    return;
  }
  outer.buffer = WholeView(flats_[flat].received, wire, layout.shard_numel);
  CastOp<View> cast;
  cast.x = result;
  cast.out = outer.buffer;
  b_.Emit(cast, StreamId::kReduce, "outer_cast/" + layout.name, layout.key.unit);
  b_.Emit(outer, StreamId::kReduce, "outer_reduce/" + layout.name, layout.key.unit);
  AccumulateOp<View> back;
  back.x = outer.buffer;
  back.out = result;
  back.update = Update::kOverwrite;
  b_.Emit(back, StreamId::kReduce, "outer_back/" + layout.name, layout.key.unit);
}

}  // namespace millrace
