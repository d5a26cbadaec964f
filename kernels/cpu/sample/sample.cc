#include "kernels/cpu/sample/sample.h"

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/loss/softmax.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/sample_row.h"
#include "runtime/base/error.h"

namespace millrace::cpu {
namespace {

void Check(const SampleOp<TensorView>& op) {
  const int64_t rows = op.logits.dim(0);
  CheckFloat(op.logits, "logits");
  MR_CHECK(op.vocab > 0 && op.vocab <= op.logits.dim(1), "sample: vocabulary {} of {} columns",
           op.vocab, op.logits.dim(1));
  MR_CHECK(op.params.dtype() == DType::kI64 && op.params.numel() == rows * kSampleWords,
           "sample: params of {} rows are {}", rows, ToString(op.params.layout));
  MR_CHECK(op.token.numel() == rows && op.logprob.numel() == rows, "sample: {} rows, {} and {}",
           rows, ToString(op.token.layout), ToString(op.logprob.layout));
  MR_CHECK_EQ(static_cast<bool>(op.top_ids), static_cast<bool>(op.top_logprobs),
              "sample: likeliest tokens and their log-probabilities");
}

SampleParams ParamsOf(const TensorView& params, int64_t row) {
  SampleParams of;
  std::memcpy(&of, params.data + row * static_cast<int64_t>(sizeof of), sizeof of);
  return of;
}

}  // namespace

void Sample(const SampleOp<TensorView>& op, Stream&) {
  Check(op);
  const int64_t most = op.top_ids ? op.top_ids.dim(1) : 0;
  std::vector<float> logits(static_cast<size_t>(op.vocab));
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    const Row row = RowAt(op.logits, r);
    ForChunks(op.vocab, [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      std::copy_n(Load(row, c, n, buffer), n, logits.data() + c);
    });
    const SampleParams params = ParamsOf(op.params, r);
    MR_CHECK(params.top >= 0 && params.top <= most, "sample: the {} likeliest tokens of row {}, {}",
             params.top, r, most);
    const bool finite = AllFinite(logits);
    const double log_sum = SoftmaxOf(row, op.vocab).log_sum_exp();
    const auto log_probability = [&](int32_t token) {
      if (token == kNoToken) return std::numeric_limits<float>::quiet_NaN();
      return -static_cast<float>(log_sum - static_cast<double>(logits[static_cast<size_t>(token)]));
    };
    const int32_t token = finite ? SampleToken(logits, params) : kNoToken;
    op.token.as<int32_t>()[r] = token;
    op.logprob.as<float>()[r] = log_probability(token);
    std::vector<int32_t> top;
    if (finite) top = LikeliestTokens(logits, params.top);
    for (int64_t i = 0; i < most; ++i) {
      const bool there = i < std::ssize(top);
      op.top_ids.as<int32_t>()[r * most + i] = there ? top[static_cast<size_t>(i)] : kNoToken;
      op.top_logprobs.as<float>()[r * most + i] = there
                                                      ? log_probability(top[static_cast<size_t>(i)])
                                                  : finite ? 0.0f
                                                           : NAN;
    }
  }
}

}  // namespace millrace::cpu
