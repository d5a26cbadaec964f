#include "kernels/cuda/cross_entropy.h"

#include <limits>

#include "kernels/cuda/cross_entropy_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

void CudaCrossEntropy(const CrossEntropyOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0), padded = op.logits.dim(1);
  MR_CHECK(op.vocab > 0 && op.vocab <= padded, "cross_entropy: vocabulary {} of {} columns",
           op.vocab, padded);
  MR_CHECK_LE(padded, std::numeric_limits<int32_t>::max() - kPack, "cross_entropy: columns");
  CrossEntropyArgs args;
  args.logits = RowsOf(op.logits, "logits");
  args.targets = TokensOf(op.targets, op.scalars, op.parity_stride);
  const int64_t all_rows = args.targets.batch * args.targets.length;
  const int64_t first = op.row_begin.value();
  MR_CHECK_LE(first + rows, all_rows, "cross_entropy: last row of the chunk");
  MR_CHECK_LE(all_rows, std::numeric_limits<int32_t>::max(), "cross_entropy: rows");
  args.row_loss =
      reinterpret_cast<double*>(ScratchOf(op.scratch, CrossEntropyBytes(rows), "cross_entropy"));
  args.loss_sum = DoublesOf(op.loss_sum, 1, "loss_sum");
  args.loss_weight = op.loss_weight;
  args.row_begin = first;
  args.rows = rows;
  args.vocab = static_cast<int>(op.vocab);
  args.padded = static_cast<int>(padded);
  args.gradient = op.output == LossOutput::kLossAndGradient;
  args.add_loss = op.loss_update == Update::kAccumulate;
  LaunchCrossEntropy(args, LaunchOn(stream));
}

}  // namespace millrace
