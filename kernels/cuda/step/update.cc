#include "kernels/cuda/step/update.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>

#include "kernels/cuda/step/shard_part.h"
#include "kernels/cuda/step/update_launch.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

namespace {

AdamWArgs ArgsOf(const AdamWOp<TensorView>& op) {
  AdamWArgs args;
  args.master = FlatOf(op.master, "master");
  args.m = FlatOf(op.m, "m");
  args.v = FlatOf(op.v, "v");
  args.grad = FlatOf(op.grad, "grad", kF16Too);
  args.compute = FlatOf(op.compute, "compute", kF16Too);
  args.scalars = ScalarsOf(op.scalars);
  args.beta1 = op.beta1;
  args.beta2 = op.beta2;
  args.eps = op.eps;
  args.weight_decay = op.weight_decay;
  return args;
}

bool Decays(const AdamWOp<TensorView>& op, const LogicalRun& run) {
  return op.decay != nullptr &&
         std::any_of(op.decay->begin(), op.decay->end(), [&](const Range& range) {
           return range.begin <= run.begin && run.begin < range.end;
         });
}

// The shard by as many runs at once as a launch takes.
void LaunchInRuns(const AdamWOp<TensorView>& op, const Launch& launch, double lr_scale = 1) {
  AdamWArgs args = ArgsOf(op);
  args.lr_scale = lr_scale;
  const int64_t n = op.master.numel();
  NarrowRuns runs;
  runs.flat_begin = op.flat_begin.value();
  const int64_t place = op.place.value();
  const auto launch_until = [&](int64_t end) {
    args.end = end;
    if (args.begin < end) LaunchAdamWNarrow(args, runs, launch);
    args.begin = end;
  };
  for (const LogicalRun& run : *op.runs) {
    const int64_t begin = run.begin - runs.flat_begin;
    if (run.end <= runs.flat_begin || begin >= n) continue;
    if (runs.count == kRunsPerLaunch) {
      // The next launch begins with a whole pack: it takes along the runs that reach into that.
      launch_until(begin / kPack * kPack);
      NarrowRuns next = runs;
      next.count = 0, next.decays = 0;
      for (int r = 0; r < runs.count; ++r)
        if (runs.of[r].end - runs.flat_begin > args.begin) {
          next.decays |= (runs.decays >> r & 1) << next.count;
          next.of[next.count++] = runs.of[r];
        }
      runs = next;
    }
    runs.decays |= uint64_t{Decays(op, run)} << runs.count;
    LogicalRun& mine = runs.of[runs.count++] = run;
    mine.first = run.FirstAt(place);
  }
  launch_until(n);
}

// A launch for each segment: runs alone fill a kernel's arguments.
void LaunchInRunsOfSegments(const AdamWOp<TensorView>& op, const Launch& launch) {
  ArgsOf(op);  // parts are contiguous where the whole is
  static const auto kAll = std::make_shared<const std::vector<Range>>(
      std::vector<Range>{{0, std::numeric_limits<int64_t>::max()}});
  ForSegments(*op.segments, op.flat_begin.value(), op.master.numel(),
              [&](int64_t begin, int64_t end, const UpdateSegment& by) {
                AdamWOp<TensorView> part = op;
                for (TensorView* view : {&part.master, &part.m, &part.v, &part.grad, &part.compute})
                  *view = PartOf(*view, begin, end);
                part.flat_begin = op.flat_begin.value() + begin;
                part.decay = kAll;
                part.beta1 = by.beta1;
                part.beta2 = by.beta2;
                part.eps = by.eps;
                part.weight_decay = by.weight_decay;
                LaunchInRuns(part, launch, by.lr_scale);
              });
}

// The shard by as many decay ranges at once as a launch takes.
void LaunchInRanges(const AdamWOp<TensorView>& op, const Launch& launch) {
  AdamWArgs args = ArgsOf(op);
  const int64_t n = op.master.numel();
  Ranges decay;
  const auto launch_until = [&](int64_t end) {
    args.end = end;
    if (args.begin < end) LaunchAdamW(args, decay, launch);
    args.begin = end;
  };
  if (op.decay) {
    for (const Range& range : *op.decay) {
      const Range own{std::max<int64_t>(0, range.begin - op.flat_begin.value()),
                      std::min(n, range.end - op.flat_begin.value())};
      if (own.begin >= own.end) continue;
      if (decay.count == kRangesPerLaunch) {
        // The next launch begins with a whole pack: it takes along the ranges that reach into that.
        launch_until(own.begin / kPack * kPack);
        Range* const kept = std::copy_if(decay.of, decay.of + decay.count, decay.of,
                                         [&](const Range& r) { return r.end > args.begin; });
        decay.count = static_cast<int>(kept - decay.of);
      }
      decay.of[decay.count++] = own;
    }
  }
  launch_until(n);
}

// By as many segments at once as a launch takes.
void LaunchInStretches(const AdamWOp<TensorView>& op, const Launch& launch) {
  const AdamWArgs args = ArgsOf(op);
  Stretches stretches;
  const auto launch_them = [&] {
    if (stretches.count > 0) LaunchAdamWStretches(args, stretches, launch);
    stretches.count = 0;
  };
  ForSegments(*op.segments, op.flat_begin.value(), op.master.numel(),
              [&](int64_t begin, int64_t end, const UpdateSegment& by) {
                if (stretches.count == kStretchesPerLaunch) launch_them();
                stretches.of[stretches.count++] = {.begin = begin,
                                                   .end = end,
                                                   .lr_scale = by.lr_scale,
                                                   .beta1 = by.beta1,
                                                   .beta2 = by.beta2,
                                                   .eps = by.eps,
                                                   .weight_decay = by.weight_decay};
              });
  launch_them();
}

}  // namespace

void CudaBeginStep(const BeginStepOp<TensorView>& op, Stream& stream) {
  LaunchBeginStep(ScalarsOf(op.scalars), op, LaunchOn(stream));
}

void CudaAdamW(const AdamWOp<TensorView>& op, Stream& stream) {
  const int64_t n = op.master.numel();
  const DType moments = op.m.dtype();
  MR_CHECK(moments == DType::kF32 || (moments == DType::kBF16 && op.runs != nullptr),
           "adamw: m is {}{}", Name(moments), op.runs == nullptr ? " without runs" : "");
  for (const auto& [view, name, dtype] : {std::tuple{&op.master, "master", DType::kF32},
                                          {&op.m, "m", moments},
                                          {&op.v, "v", moments}})
    MR_CHECK(view->dtype() == dtype && view->numel() == n, "adamw: {} is {}, master is {}", name,
             ToString(view->layout), ToString(op.master.layout));
  MR_CHECK_EQ(op.grad.numel(), n, "adamw: elements of grad");
  if (op.compute) MR_CHECK_EQ(op.compute.numel(), n, "adamw: elements of compute");

  const Launch launch = LaunchOn(stream);
  if (moments == DType::kBF16)
    op.segments ? LaunchInRunsOfSegments(op, launch) : LaunchInRuns(op, launch);
  else
    op.segments ? LaunchInStretches(op, launch) : LaunchInRanges(op, launch);
}

}  // namespace millrace
