// What an op needs and costs, from shapes alone: no device, so a laptop can plan for an H200.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/model_ops.h"
#include "kernels/ops/step_ops.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

enum class Backend { kCpu, kCuda };

// Operand of a shape-only op: what Supports, WorkspaceBytes and Cost look at.
struct Shape {
  Layout layout;
  bool present = false;
  explicit operator bool() const { return present; }
};

// Scratch the backend needs for the op, in bytes; 0: no scratch operand.
int64_t WorkspaceBytes(const EmbedGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const NormGradOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const MatmulOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const ColumnSumOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const AttentionOp<Shape>& op, Backend backend);
int64_t WorkspaceBytes(const AttentionGradOp<Shape>& op, Backend backend);

// "" when the backend runs the op with these shapes and dtypes; else the reason, naming value and limit.
std::string WhyUnsupported(const MatmulOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const AttentionOp<Shape>& op, Backend backend);
std::string WhyUnsupported(const RopeOp<Shape>& op, Backend backend);

// Arithmetic: a multiply-add is 2 FLOPs. Causal attention counts the lower triangle only, T*(T+1)/2 pairs.
double Flops(const MatmulOp<Shape>& op);
double Flops(const AttentionOp<Shape>& op);      // 2 GEMMs over the triangle
double Flops(const AttentionGradOp<Shape>& op);  // 5 GEMMs over the triangle

}  // namespace millrace
