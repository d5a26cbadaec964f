// A step whose numbers are made bad on this rank.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/exec/engine.h"

namespace millrace::test {

struct Injection {
  bool loss_nan = false;
  int64_t grad_unit = -1;  // a flat parameter; -1: none
};

inline StepScalars StepWith(const Injection& injection, Engine& engine,
                            std::span<const int32_t> tokens, int64_t step, int64_t valid_tokens) {
  engine.OnScalars([injection](StepScalars& scalars) {
    scalars.inject_loss_nan = injection.loss_nan;
    scalars.inject_grad_unit = injection.grad_unit;
  });
  const StepScalars scalars = engine.Step(tokens, step, valid_tokens);
  engine.OnScalars({});
  return scalars;
}

}  // namespace millrace::test
