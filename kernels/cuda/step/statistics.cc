#include "kernels/cuda/step/statistics.h"

#include "kernels/cuda/step/statistics_launch.h"
#include "kernels/cuda/tickets.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

namespace {

unsigned long long* TicketOf(const void* written, Stream& stream) {
  return reinterpret_cast<unsigned long long*>(
      AsCuda(stream).device().Attached<Tickets>().Of(static_cast<const std::byte*>(written)));
}

SumSquaresArgs SumOf(const TensorView& x, const TensorView& out, const TensorView& scratch,
                     const char* name, Stream& stream) {
  SumSquaresArgs args;
  args.x = FlatOf(x, "x", kF16Too);
  args.n = x.numel();
  args.blocks = static_cast<int>(SumSquaresBlocks(args.n));
  args.out = DoublesOf(out, 1, name);
  if (args.blocks > 1) {
    args.partials = reinterpret_cast<double*>(ScratchOf(scratch, kSumSquaresBytes, "sum_squares"));
    args.ticket = TicketOf(args.partials, stream);
  }
  return args;
}

}  // namespace

void CudaFiniteScan(const FiniteScanOp<TensorView>& op, Stream& stream) {
  const int64_t n = op.x.numel();
  MR_CHECK(n == 0 || (op.inject_index >= 0 && op.inject_index < n),
           "finite_scan: inject_index {} of {}", op.inject_index, n);
  const auto scan = [&](auto& args) {
    args.bad_count = DoublesOf(op.bad_count, 1, "bad_count");
    args.scalars = ScalarsOf(op.scalars);
    args.unit = op.unit;
    args.inject_index = op.inject_index;
    args.accumulate = op.update == Update::kAccumulate;
  };
  if (op.squares) {
    SumSquaresArgs sum = SumOf(op.x, op.squares, op.scratch, "squares", stream);
    scan(sum);
    return LaunchSumSquares(sum, LaunchOn(stream));
  }
  FiniteScanArgs args;
  args.x = FlatOf(op.x, "x", kF16Too);
  args.n = n;
  scan(args);
  if (n > 0) args.ticket = TicketOf(args.bad_count, stream);
  LaunchFiniteScan(args, LaunchOn(stream));
}

void CudaSumSquares(const SumSquaresOp<TensorView>& op, Stream& stream) {
  LaunchSumSquares(SumOf(op.x, op.out, op.scratch, "out", stream), LaunchOn(stream));
}

void CudaStepStats(const StepStatsOp<TensorView>& op, Stream& stream) {
  const int64_t world = op.rows.dim(0);
  const StatsRow row(op.units, op.losses.count);
  MR_CHECK_EQ(op.rows.dim(1), row.width, "step_stats: columns for {} units and {} losses", op.units,
              op.losses.count);
  MR_CHECK(op.shard_world >= 1 && op.shard_world <= world, "step_stats: shard world {} of {}",
           op.shard_world, world);
  StepStatsArgs args{DoublesOf(op.rows, world * row.width, "rows"), ScalarsOf(op.scalars), world,
                     op, row};
  if (op.overflow.data != nullptr) {
    args.blocks = op.overflow.numel();
    args.overflow = FloatsOf(op.overflow, args.blocks, "overflow");
  }
  LaunchStepStats(args, LaunchOn(stream));
}

}  // namespace millrace
