#include "kernels/cuda/tensor_cores/tensor_map.h"

#include "runtime/base/cuda/driver_function.h"

namespace millrace::cuda {

CUtensorMap MapOfBF16(const std::byte* data, std::array<int64_t, 3> dims,
                      std::array<int64_t, 2> strides, int box_rows) {
  static auto* const encode =
      DriverFunction<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(dims[0]), static_cast<cuuint64_t>(dims[1]),
                              static_cast<cuuint64_t>(dims[2])};
  const cuuint64_t bytes[] = {static_cast<cuuint64_t>(2 * strides[0]),
                              static_cast<cuuint64_t>(2 * strides[1])};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<std::byte*>(data), sizes, bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  MR_REQUIRE(ErrorCode::kDevice, result == CUDA_SUCCESS,
             "the driver refuses a map of a [{}, {}, {}] with strides {}, {} at {}: CUDA error {}",
             dims[2], dims[1], dims[0], strides[1], strides[0], static_cast<const void*>(data),
             static_cast<int>(result));
  return map;
}

}  // namespace millrace::cuda
