#include "kernels/cuda/sample/sample.h"

#include "kernels/cuda/loss/cross_entropy_launch.h"
#include "kernels/cuda/sample/sample_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

namespace {

struct WideClusters {
  explicit WideClusters(CudaDevice&) : sixteen(HasClusterOfSixteen()) {}
  const bool sixteen;
};

}  // namespace

void CudaSample(const SampleOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0), padded = op.logits.dim(1);
  MR_CHECK(op.vocab > 0 && op.vocab <= padded && padded < (1 << 24),
           "sample: vocabulary {} of {} columns", op.vocab, padded);
  MR_CHECK(op.params.dtype() == DType::kI64 && op.params.layout.contiguous() &&
               op.params.numel() == rows * kSampleWords,
           "sample: params of {} rows are {}", rows, ToString(op.params.layout));
  MR_CHECK_EQ(static_cast<bool>(op.top_ids), static_cast<bool>(op.top_logprobs),
              "sample: likeliest tokens and their log-probabilities");
  SampleArgs args;
  args.logits = RowsOf(op.logits, "logits");
  // Whole packs are read, the last one from behind the vocabulary.
  args.logits.wide &= padded >= RoundUp(op.vocab, kPack);
  args.params = op.params.as<const SampleParams>();
  args.token = IntsOf(op.token, rows, "token");
  args.logprob = FloatsOf(op.logprob, rows, "logprob");
  args.rows = static_cast<int>(rows);
  args.vocab = static_cast<int>(op.vocab);
  if (op.top_ids) {
    args.most = static_cast<int>(op.top_ids.dim(1));
    MR_CHECK_LE(op.top_ids.dim(1), kMaxSampleTop, "sample: likeliest tokens of a row");
    args.top_ids = IntsOf(op.top_ids, rows * args.most, "top_ids");
    args.top_logprobs = FloatsOf(op.top_logprobs, rows * args.most, "top_logprobs");
  }
  // Of many rows its blocks would take places from those that draw.
  args.followed = op.in_order && rows == 1;
  args.sixteen = AsCuda(stream).device().Attached<WideClusters>().sixteen;
  LaunchSample(args, LaunchOn(stream));
  if (!op.in_order) return;
  // The sampler sums in an order of its own; tokens do not depend on it.
  LogprobArgs logprobs;
  logprobs.logits = RowsOf(op.logits, "logits");
  logprobs.tokens[0] = {args.token, args.logprob, 1};
  logprobs.tokens[1] = {args.top_ids, args.top_logprobs, args.most};
  logprobs.rows = args.rows;
  logprobs.vocab = args.vocab, logprobs.padded = static_cast<int>(padded);
  logprobs.complete = args.followed;
  LaunchLogprobs(logprobs, LaunchOn(stream));
}

}  // namespace millrace
