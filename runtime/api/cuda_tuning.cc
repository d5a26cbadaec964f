#include "runtime/api/cuda_tuning.h"

#include "kernels/cuda/matmul/matmul_plans.h"
#include "kernels/cuda/tuning/tuning.h"

namespace millrace {

Tuner MakeTuner(CudaDevice& device) {
  return {
      .device = device.name(),
      .library_version = MatmulPlans::LibraryVersion(),
      .measure =
          [&device](const std::vector<MatmulOp<Shape>>& products) {
            return millrace::Tune(device, products, {});
          },
      .install =
          [&device](const TuningTable& table) { device.Attached<MatmulPlans>().Install(table); }};
}

}  // namespace millrace
