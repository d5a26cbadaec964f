// Runs a lowered program, one microbatch, on a kernel table: a buffer of host memory for
// each program buffer, ops in order. What plans, shards and arenas do to a program must
// not change what this gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops/kernel_table.h"
#include "runtime/base/step_scalars.h"
#include "runtime/plan/lower/lower.h"

namespace millrace::test {

class ProgramInterpreter {
 public:
  // Memory starts as 0xff bytes: NaN, and token -1.
  ProgramInterpreter(const Program& program, const KernelTable& kernels);

  StepScalars& scalars() { return scalars_; }
  void SetTokens(const std::vector<int32_t>& tokens);  // [B, T+1]
  // `values` have the stored shape and are rounded to the gather dtype. Unused: nothing happens.
  void SetParam(ParamId param, const std::vector<float>& values);
  std::vector<float> Gradient(
      ParamId param) const;           // stored shape; empty when the program has none
  double loss() const;                // weighted sum over the microbatch
  std::vector<float> logits() const;  // [Vp]
  void Run();                         // prologue, forward, backward

 private:
  TensorView Bind(const View& view) const;
  int32_t Find(ProgramRole role, ParamId param = {}) const;  // -1: none
  void RunOps(const std::vector<ProgramOp>& ops);

  const Program& program_;
  const KernelTable& kernels_;
  StepScalars scalars_{};
  std::vector<std::vector<std::byte>> memory_;  // by buffer
};

}  // namespace millrace::test
