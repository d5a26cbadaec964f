// Parameters of a plan: which bucket a parameter is read from at a position of the microbatch, and
// the ops that fill it (downcast, all-gather). Internal to runtime/plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/schedule/gather_schedule.h"
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {

class ParamPass {
 public:
  // `reshard` by UnitId. `carry`: the first `prefetch` segments are gathered at the end of the
  // previous microbatch, update or prologue.
  ParamPass(StepBuilder& builder, const std::vector<Reshard>& reshard, bool carry);

  // The gathered (or resident) weights of `param`, viewed as `view` asks, for the op at `position`
  // of the microbatch.
  View Resolve(const View& view, ParamId param, int position) const;

  // The scales of a parameter that is gathered in FP8.
  View ResolveScales(const View& view, ParamId param) const;

  // Emits the gathers issued before `position`. `first`: first microbatch of the step, where
  // whole-step segments are gathered. `more`: another microbatch follows, whose carried segments
  // this one gathers; position == ops emits what is left.
  void EmitGathersAt(int position, bool first, bool more);
  // Carried segments of `flat`, after its update.
  void EmitCarriedGathers(FlatId flat);

  // Flats in order of first use.
  std::vector<FlatId> order() const;

 private:
  // Of one flat of the segment's unit.
  struct Stay {
    GatherSegment segment;
    FlatId flat;
    BufferId bucket;
    BufferId staging;  // f32 gather output, downcast after_gather only
    std::string name;
  };

  bool Resident(FlatId flat) const;  // read from persistent memory, nothing to gather
  const std::vector<size_t>& StaysOf(FlatId flat) const { return stays_of_flat_[flat]; }
  void AddStay(const GatherSegment& segment, FlatId flat);
  void EmitGather(Stay& stay);

  StepBuilder& b_;
  std::vector<Stay> stays_;
  IdVector<FlatId, std::vector<size_t>> stays_of_flat_;  // into stays_, in order
  // (position before which it is gathered, into stays_), ascending.
  std::vector<std::pair<int, size_t>> issues_;
};

}  // namespace millrace
