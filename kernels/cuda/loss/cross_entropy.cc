#include "kernels/cuda/loss/cross_entropy.h"

#include <limits>

#include "kernels/cuda/loss/cross_entropy_launch.h"
#include "kernels/cuda/tickets.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

void CudaCrossEntropy(const CrossEntropyOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0), padded = op.logits.dim(1);
  MR_CHECK(op.vocab > 0 && op.vocab <= padded, "cross_entropy: vocabulary {} of {} columns",
           op.vocab, padded);
  MR_CHECK_LE(padded, std::numeric_limits<int32_t>::max() - kPack, "cross_entropy: columns");
  CrossEntropyArgs args;
  args.logits = RowsOf(op.logits, "logits", kF16Too);
  args.targets = TokensOf(op.targets, op.scalars, op.parity_stride);
  const int64_t all_rows = args.targets.batch * args.targets.length;
  const int64_t first = op.row_begin.value();
  MR_CHECK_LE(first + rows, all_rows, "cross_entropy: last row of the chunk");
  MR_CHECK_LE(all_rows, std::numeric_limits<int32_t>::max(), "cross_entropy: rows");
  args.weights = ValuesOf(op.weights, args.targets, "weights");
  args.old_logprobs = ValuesOf(op.old_logprobs, args.targets, "old_logprobs");
  args.advantages = ValuesOf(op.advantages, args.targets, "advantages");
  args.reference_logprobs = ValuesOf(op.reference_logprobs, args.targets, "reference_logprobs");
  args.values_parity_stride = op.values_parity_stride;
  const bool policy = args.advantages.data != nullptr;
  MR_CHECK((args.old_logprobs.data != nullptr) == policy &&
               (policy || (args.reference_logprobs.data == nullptr && !op.tally)),
           "cross_entropy: old_logprobs and advantages go together, others with them");
  args.policy = op.policy;
  args.tally = FloatsOf(op.tally, PolicyTally::kCount, "tally");
  args.row_loss = reinterpret_cast<double*>(ScratchOf(
      op.scratch, CrossEntropyBytes(rows, op.tally ? PolicyTally::kCount : 0), "cross_entropy"));
  if (args.tally != nullptr) args.row_tally = reinterpret_cast<float*>(args.row_loss + rows);
  if (op.row_loss) args.row_loss = DoublesOf(op.row_loss, rows, "row_loss");
  args.loss_sum = DoublesOf(op.loss_sum, 1, "loss_sum");
  args.ticket =
      reinterpret_cast<unsigned*>(AsCuda(stream).device().Attached<Tickets>().Of(op.loss_sum.data));
  args.loss_weight = op.loss_weight;
  args.row_begin = first;
  args.rows = rows;
  args.vocab = static_cast<int>(op.vocab);
  args.padded = static_cast<int>(padded);
  args.gradient = op.output == LossOutput::kLossAndGradient;
  args.add_loss = op.loss_update == Update::kAccumulate;
  args.add_tally = op.tally_update == Update::kAccumulate;
  LaunchCrossEntropy(args, LaunchOn(stream));
}

}  // namespace millrace
