// Gradients of a plan: where each parameter's gradient is written in a microbatch, and the ops that
// carry it to the gradient shard (concat, wire cast, finite scan, reduce-scatter, outer all-reduce,
// norm). Internal to runtime/plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {

class GradPass {
 public:
  explicit GradPass(StepBuilder& builder);

  // Ops due before the program op at `position` (zeroing of gaps), and after it (what follows a
  // flat's last contribution).
  void EmitBefore(int position, Variant variant);
  void EmitAfter(int position, Variant variant);

  // Destination of a contribution to `param`, and whether contributions land on an accumulator
  // that outlives the microbatch, so that in all but the first microbatch even the first
  // contribution accumulates.
  View Resolve(const View& view, ParamId param);
  bool outlives_microbatch(ParamId param) const;
  // Whether each contribution lands alone in a buffer of its own, so that it overwrites.
  bool one_contribution_per_part() const { return b_.options.grad_concat == GradConcat::kEvery; }
  // Whether the kernel that forms the gradient of `param` rounds it to the wire's dtype. No other
  // way of adding or rounding leads to the same value, so the kernel may form it as it likes.
  bool formed_for_wire(ParamId param) const {
    const FlatId flat = b_.layout.param(param).flat;
    return BucketDType(flat) != b_.layout.PrecisionOf(flat).grad_accumulate;
  }

  // In the update's body: zeros in the cells of flats that are not trained.
  void EmitNoStatistics();

  // The step's final gradient of a flat parameter: [shard_numel], valid after the last microbatch;
  // in the wire's dtype where it has been reduced once, f32 where several reductions are added.
  // Absent of a flat that is not trained.
  View final_grad(FlatId flat) const { return final_[flat]; }
  // Cells of this rank's statistics row.
  View sum_squares(FlatId flat) const;
  View bad_count(FlatId flat) const;
  View loss_sum(LossId loss) const;

 private:
  struct FlatState {
    // Positions of first and last contribution; both the last position when there is none.
    int first = -1, last = -1;
    RangeList zero;   // gaps, and parameters that nothing contributes to
    BufferId bucket;  // unsharded flat gradient: accumulator or transient
    DType dtype;      // of the bucket: precision.grad_accumulate, or the wire's if written_once
    BufferId wire;    // bucket in wire encoding, when it differs
    // Reduced shard that is yet to be accumulated: of a gradient reduced more than once.
    BufferId received;
  };
  struct ParamState {
    BufferId part;  // gradient on its own, before concat
    // Positions, ascending; several for a tied table or a loss in chunks.
    std::vector<int> contributions;
    bool used() const { return !contributions.empty(); }
  };

  bool IsTrained(ParamId param) const;
  void AddDiscarded(FlatId flat);
  bool sync_every(FlatId flat) const;    // reduced every microbatch
  bool reduced_once(FlatId flat) const;  // in a step
  bool direct() const { return b_.options.grad_concat == GradConcat::kDirect; }
  bool WrittenOnce(FlatId flat) const;
  DType BucketDType(FlatId flat) const { return flats_[flat].dtype; }
  DType PartDType(FlatId flat) const;
  StatsRow row() const { return b_.stats_row(); }
  View Cell(int64_t column) const;
  View Bucket(FlatId flat) const;
  void Zero(FlatId flat);
  void Concat(ParamId param, Update update);
  void ConcatAll(
      FlatId flat,
      bool fresh);  // fresh: nothing of this flat is in its bucket from earlier microbatches
  // Of the constructor: which ops form gradients, and the buffers that these lie in.
  void FindContributions();
  RangeList ZeroedOf(FlatId flat) const;
  void AddBucket(FlatId flat);
  View AddFinal(FlatId flat);
  void AddParts();
  void Reduce(FlatId flat, Variant variant);
  View CastForWire(FlatId flat, StreamId stream, ReducePoint& point);
  void Scan(FlatId flat, const View& sent, StreamId stream, bool fresh, bool with_norm);
  void ReduceScatter(FlatId flat, const View& sent, bool fresh, ReducePoint point);
  void OuterReduce(FlatId flat);

  StepBuilder& b_;
  int ops_ = 0;  // of a microbatch
  IdVector<FlatId, FlatState> flats_;
  IdVector<ParamId, ParamState> params_;
  // (position, what is due there), ascending.
  std::vector<std::pair<int, FlatId>> first_at_, last_at_;
  std::vector<std::pair<int, ParamId>> contributions_at_;
  IdVector<FlatId, View> final_;
};

}  // namespace millrace
