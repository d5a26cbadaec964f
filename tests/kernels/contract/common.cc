#include <iterator>

#include "tests/kernels/contract/contract.h"

namespace millrace::test {

int64_t PickSize(Random& random) { return kSizes[Pick(random, 0, std::ssize(kSizes) - 1)]; }
Strides PickRowStrides(Random& random) { return Flip(random) ? Strides::kDense : Strides::kPadded; }
Update PickUpdate(Random& random) {
  return Flip(random) ? Update::kOverwrite : Update::kAccumulate;
}

StepScalars MakeScalars() {
  StepScalars scalars{};
  scalars.inv_valid_tokens = 1.0 / 37;
  scalars.inject_grad_unit = -1;
  scalars.lr = 3e-3;
  scalars.clip_scale = 0.75;
  scalars.applied = 1;
  scalars.offender_unit = -2;
  scalars.offender_rank = -1;
  scalars.adam_t = 1;
  return scalars;
}

}  // namespace millrace::test
