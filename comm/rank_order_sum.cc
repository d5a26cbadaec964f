#include "comm/rank_order_sum.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/float16.h"

namespace millrace {
namespace {

// Elements that are summed over all ranks before the next ones: the accumulators stay in the
// first-level cache, the loops vectorise, and a term is read completely before the output, which
// may be that term, is written.
constexpr int64_t kBlock = 512;

void Load(const float* in, float* acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] = in[i];
}
void Load(const double* in, double* acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] = in[i];
}
void Load(const BFloat16* in, float* acc, int64_t n) { ConvertToFloat(in, acc, n); }
void Load(const Float16* in, float* acc, int64_t n) { ConvertToFloat(in, acc, n); }

void Add(const float* in, float* acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += in[i];
}
void Add(const double* in, double* acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += in[i];
}
void Add(const BFloat16* in, float* acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += ToFloat(in[i]);
}
void Add(const Float16* in, float* acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += ToFloat(in[i]);
}

void Store(const float* acc, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = acc[i];
}
void Store(const double* acc, double* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = acc[i];
}
void Store(const float* acc, BFloat16* out, int64_t n) { ConvertToBFloat16(acc, out, n); }
void Store(const float* acc, Float16* out, int64_t n) { ConvertToFloat16(acc, out, n); }

template <typename T, typename Acc>
void Sum(std::span<const std::byte* const> terms, std::byte* out, int64_t n) {
  Acc acc[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    Load(reinterpret_cast<const T*>(terms[0]) + begin, acc, count);
    for (size_t r = 1; r < terms.size(); ++r)
      Add(reinterpret_cast<const T*>(terms[r]) + begin, acc, count);
    Store(acc, reinterpret_cast<T*>(out) + begin, count);
  }
}

}  // namespace

void RankOrderSum(DType dtype, std::span<const std::byte* const> terms, std::byte* out, int64_t n) {
  MR_CHECK(!terms.empty(), "a sum over no ranks");
  switch (dtype) {
    case DType::kF32:
      return Sum<float, float>(terms, out, n);
    case DType::kBF16:
      return Sum<BFloat16, float>(terms, out, n);
    case DType::kF16:
      return Sum<Float16, float>(terms, out, n);
    case DType::kF64:
      return Sum<double, double>(terms, out, n);
    default:
      MR_FAIL("no sum over {}", Name(dtype));
  }
}

}  // namespace millrace
