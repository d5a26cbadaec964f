// Payloads and scales of FP8 from rows (kernels/ops/fp8_ops.h). Blocks of threads take tiles of 128
// x 128, each of which is read once for both forms that are made of it. One scale for all: what has
// written the rows, or else a launch before, finds the largest magnitude. Nothing depends on an
// order.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/rows.h"
#include "kernels/ops/fp8_blocks.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/policies.h"

namespace millrace::cuda {

struct Scales {
  float* data = nullptr;  // nullptr: another form has written them
  int rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 0;
};

// A payload. A line is a row or, where it lies by columns, a column.
struct QuantizedForm {
  uint8_t* data = nullptr;  // nullptr: the form is absent
  int64_t line_stride = 0;
  bool by_columns = false;
  bool wide = false;  // every line begins at a multiple of 16 bytes
  ScaleShare share = ScaleShare::kTensor;
  Scales scales;
};

struct QuantizeArgs {
  Rows x;
  int rows = 0, columns = 0;  // of the forms
  QuantizedForm forms[2];
  // Of kTensor: the scale, or what to make it of.
  const float* tensor_scale = nullptr;
  const uint32_t* magnitude = nullptr;
  float largest = 0;    // of the format
  bool powers = false;  // scales are
};

// `activation`: of x, which has its results in place of x's elements: GELU or SwiGLU, to e4m3.
void LaunchQuantize(const QuantizeArgs& args, Elements elements, bool e5m2,
                    std::optional<ActivationKind> activation, const Launch& launch);

struct TensorScaleArgs {
  Rows x;
  int64_t rows = 0, columns = 0;
  float* scale = nullptr;
  unsigned* ticket = nullptr;  // two words: the largest magnitude's bits, how many blocks are done
  float largest = 0;
  bool powers = false;
};

void LaunchTensorScale(const TensorScaleArgs& args, Elements elements, const Launch& launch);

}  // namespace millrace::cuda
