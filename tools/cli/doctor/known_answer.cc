#include "tools/cli/doctor/known_answer.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// 1, 2, -1 or -2, in an order that repeats late.
float Small(int64_t i, uint64_t which) {
  uint64_t x =
      (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull + which * 0xd1b54a32d192ed03ull;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
  constexpr float kValues[] = {1, 2, -1, -2};
  return kValues[x >> 62];
}

// Which of the four vectors. Those of the inner dimension are positive, so that no sum is zero.
constexpr uint64_t kP = 1, kQ = 2, kS = 3, kT = 4;
float Value(int64_t i, uint64_t which) {
  return which == kQ || which == kS ? std::abs(Small(i, which)) : Small(i, which);
}

// rows[i] * cols[j], as elements of a matrix [n, n].
std::vector<std::byte> Matrix(int64_t n, uint64_t rows, uint64_t cols, DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(n * n * Bytes(dtype)));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const float value = Value(i, rows) * Value(j, cols);
      const BFloat16 narrow = ToBFloat16(value);
      std::byte* const at = bytes.data() + (i * n + j) * Bytes(dtype);
      if (dtype == DType::kF32)
        std::memcpy(at, &value, sizeof value);
      else
        std::memcpy(at, &narrow, sizeof narrow);
    }
  return bytes;
}

std::string Try(Device& device, const KernelTable& kernels, Backend backend, int64_t n,
                DType dtype) {
  const std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  const Layout in = DenseLayout(dtype, {n, n}), out = DenseLayout(DType::kF32, {n, n});
  MatmulOp<Shape> shape{};
  shape.a = shape.b = {in, true};
  shape.out = {out, true};
  const int64_t operand = n * n * Bytes(dtype), result = n * n * Bytes(DType::kF32);
  const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t scratch = WorkspaceBytes(shape, backend);
  const std::unique_ptr<DeviceBuffer> buffer = device.Allocate(
      2 * rounded(operand) + rounded(result) + scratch, "a product of known result");
  std::byte* at = buffer->data();
  const auto take = [&](int64_t bytes) {
    std::byte* const taken = at;
    at += rounded(bytes);
    return taken;
  };
  MatmulOp<TensorView> op{};
  op.a = {take(operand), in};
  op.b = {take(operand), in};
  op.out = {take(result), out};
  if (scratch > 0) op.scratch = {at, DenseLayout(DType::kU8, {scratch})};
  device.CopyFromHost(op.a.data, Matrix(n, kP, kQ, dtype).data(), operand, *stream);
  device.CopyFromHost(op.b.data, Matrix(n, kS, kT, dtype).data(), operand, *stream);
  kernels.matmul(op, *stream);
  std::vector<float> c(static_cast<size_t>(n * n));
  device.CopyToHost(c.data(), op.out.data, result, *stream);

  float sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += Value(k, kQ) * Value(k, kS);
  int64_t wrong = 0;
  std::string first;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const float have = c[static_cast<size_t>(i * n + j)],
                  want = Value(i, kP) * Value(j, kT) * sum;
      if (have == want) continue;
      if (wrong++ == 0) first = fmt::format("[{}, {}] is {} where {} is right", i, j, have, want);
    }
  if (wrong == 0) return "";
  return fmt::format("of a {} product of known result {} of {} elements are wrong: {}", Name(dtype),
                     wrong, n * n, first);
}

}  // namespace

std::string KnownAnswerProducts(Device& device, const KernelTable& kernels, Backend backend,
                                int64_t n) {
  MR_CHECK_LE(n, int64_t{1} << 18, "sums of a product are not exact: n");
  for (const DType dtype : {DType::kF32, DType::kBF16})
    if (std::string trouble = Try(device, kernels, backend, n, dtype); !trouble.empty())
      return trouble;
  return "";
}

}  // namespace millrace
