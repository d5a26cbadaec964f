#include "kernels/cpu/rows.h"

#include "runtime/base/float16.h"

namespace millrace::cpu {

void LoadF16(Row row, int64_t begin, int64_t n, float* buffer) {
  const Float16* const in = reinterpret_cast<const Float16*>(row.data) + begin * row.stride;
  if (row.stride == 1) return ConvertToFloat(in, buffer, n);
  for (int64_t i = 0; i < n; ++i) buffer[i] = ToFloat(in[i * row.stride]);
}

void StoreF16(Row row, int64_t begin, int64_t n, const float* values) {
  Float16* const out = reinterpret_cast<Float16*>(row.data) + begin * row.stride;
  if (row.stride == 1) return ConvertToFloat16(values, out, n);
  for (int64_t i = 0; i < n; ++i) out[i * row.stride] = ToFloat16(values[i]);
}

void RoundToF16(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = ToFloat(ToFloat16(values[i]));
}

}  // namespace millrace::cpu
