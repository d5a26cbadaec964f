#include "runtime/plan/lower/lower.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/ops/cuda_float16.h"
#include "runtime/base/arithmetic.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/lower/row_linears.h"
#include "runtime/plan/lower/strips.h"

namespace millrace {

int64_t LossChunkRows(Backend backend, int64_t rows, int64_t padded_vocab, DType logits) {
  if (backend == Backend::kCpu) return 512;
  constexpr int64_t kLogitsBytes = int64_t{1} << 30;
  constexpr int64_t kRowTile = 128;  // of a GEMM on Hopper
  const int64_t chunks =
      std::max<int64_t>(1, CeilDiv(rows * padded_vocab * Bytes(logits), kLogitsBytes));
  return std::max<int64_t>(kRowTile, RoundUp(CeilDiv(rows, chunks), kRowTile));
}

View Transposed(View view) {
  const auto last = static_cast<size_t>(view.layout.rank) - 1;
  std::swap(view.layout.dims[last - 1], view.layout.dims[last]);
  std::swap(view.layout.strides[last - 1], view.layout.strides[last]);
  return view;
}

View Rows(View view, int64_t begin, int64_t rows) {
  view.offset += begin * view.layout.strides[0];
  view.layout.dims[0] = rows;
  return view;
}

View InOneRow(View view) {
  if (view) view.layout = DenseLayout(view.layout.dtype, {view.layout.numel()});
  return view;
}

const std::vector<const Node*>& Lowering::BackwardReadersOf(ValueId value) {
  if (backward_readers_.size() == 0) {
    backward_readers_.resize(graph_.values.size());
    for (const Node& node : graph_.backward)
      for (const ValueId input : node.inputs)
        if (input && (backward_readers_[input].empty() || backward_readers_[input].back() != &node))
          backward_readers_[input].push_back(&node);
  }
  return backward_readers_[value];
}

namespace {

// Why the backend cannot run the op; "": it can.
std::string WhyNot(const KernelOp& op, Backend backend) {
  return std::visit(
      [&]<template <class> class Op>(const Op<View>& typed) -> std::string {
        const auto shape_of = [](const View& view) {
          return Shape{.layout = view.layout, .present = static_cast<bool>(view)};
        };
        const Op<Shape> shapes = ConvertOp<Op, View, Shape>(typed, shape_of);
        if (backend == Backend::kCuda)
          if (std::string why = cuda::WhyNoFloat16(shapes); !why.empty()) return why;
        if constexpr (requires { WhyUnsupported(shapes, backend); })
          return WhyUnsupported(shapes, backend);
        return "";
      },
      op);
}

}  // namespace

void Lowering::Push(KernelOp op, const Node& node, const std::string& suffix) {
  std::string label = node.label + suffix;
  const std::string why = WhyNot(op, options_.backend);
  MR_REQUIRE(ErrorCode::kConfig, why.empty(), "{}: {}", label, why);
  ops_->push_back(ProgramOp{.op = std::move(op),
                            .label = std::move(label),
                            .unit = node.unit,
                            .recomputed = node.recomputed});
}

void Lowering::LowerSteps(const std::vector<Step>& steps, std::vector<ProgramOp>& ops) {
  ops_ = &ops;
  quantized_.ForgetWeights(graph_);
  for (const Step& step : steps) {
    MR_CHECK(step.node->kind->lower != nullptr, "node {}: {} has no lowering", step.node->label,
             step.node->kind->name);
    step.node->kind->lower(*this, step);
    storage_.NextStep();
  }
  OrderByStrip(ops, storage_.buffers());
}

Program Lowering::Run() && {
  program_.sources = SourcesOf(graph_.inputs, graph_.losses);
  program_.losses = graph_.losses;
  program_.choices = fused_.choices;
  LowerSteps(fused_.prologue, program_.prologue);
  LowerSteps(fused_.forward, program_.forward);
  LowerSteps(fused_.backward, program_.backward);
  if (std::optional<ProgramOp> zero = magnitudes_.Zero(graph_))
    program_.forward.insert(program_.forward.begin(), *std::move(zero));
  program_.buffers = std::move(storage_).TakeBuffers();
  JoinRowLinears(graph_, options_, &program_);
  return std::move(program_);
}

Program Lower(const SemanticGraph& graph, const LowerOptions& options) {
  return Lowering(graph, options).Run();
}

}  // namespace millrace
