#include "tests/support/program_interpreter.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/ops/cost.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/dtype.h"

namespace millrace::test {
namespace {

Shape ShapeOf(const View& view) {
  return Shape{.layout = view.layout, .present = static_cast<bool>(view)};
}

// An op of a model over host memory: bound, given scratch, run.
template <template <class> class Op, class Bind>
void RunOp(const KernelTable& kernels, const Op<View>& op, Bind&& bind, Stream& stream) {
  Op<TensorView> bound = ConvertOp<Op, View, TensorView>(op, bind);
  std::vector<std::byte> scratch;
  if constexpr (requires { bound.scratch; }) {
    const int64_t bytes = WorkspaceBytes(ConvertOp<Op, View, Shape>(op, ShapeOf), Backend::kCpu);
    scratch.assign(static_cast<size_t>(bytes), std::byte{0xff});
    if (bytes > 0)
      bound.scratch =
          TensorView{.data = scratch.data(), .layout = DenseLayout(DType::kU8, {bytes})};
  }
  kernels(bound, stream);
}

}  // namespace

ProgramInterpreter::ProgramInterpreter(const Program& program, const KernelTable& kernels)
    : program_(program), kernels_(kernels) {
  scalars_.inject_grad_unit = -1;
  for (const ProgramBuffer& buffer : program.buffers)
    memory_.emplace_back(static_cast<size_t>(buffer.layout.span_bytes()), std::byte{0xff});
}

TensorView ProgramInterpreter::Bind(const View& view) const {
  if (!view) return {};
  const auto index = static_cast<size_t>(view.buffer.value);
  const int64_t begin = view.offset * Bytes(view.layout.dtype);
  if (begin + view.layout.span_bytes() > static_cast<int64_t>(memory_[index].size()))
    throw std::logic_error("view beyond buffer " + program_.buffers[index].name);
  return TensorView{.data = const_cast<std::byte*>(memory_[index].data()) + begin,
                    .layout = view.layout};
}

int32_t ProgramInterpreter::Find(ProgramRole role, ParamId param) const {
  for (size_t i = 0; i < program_.buffers.size(); ++i)
    if (program_.buffers[i].role == role && program_.buffers[i].param == param)
      return static_cast<int32_t>(i);
  return -1;
}

void ProgramInterpreter::SetTokens(const std::vector<int32_t>& tokens) {
  std::vector<std::byte>& memory = memory_.at(static_cast<size_t>(Find(ProgramRole::kInput)));
  if (memory.size() != tokens.size() * sizeof(int32_t))
    throw std::logic_error("wrong number of tokens");
  std::memcpy(memory.data(), tokens.data(), memory.size());
}

void ProgramInterpreter::SetParam(ParamId param, const std::vector<float>& values) {
  const int32_t index = Find(ProgramRole::kParam, param);
  if (index < 0) return;
  const Layout& layout = program_.buffers[static_cast<size_t>(index)].layout;
  if (layout.numel() != static_cast<int64_t>(values.size()))
    throw std::logic_error("wrong size of a parameter");
  std::byte* const data = memory_[static_cast<size_t>(index)].data();
  if (layout.dtype == DType::kBF16)
    ConvertToBFloat16(values.data(), reinterpret_cast<BFloat16*>(data), layout.numel());
  else
    std::memcpy(data, values.data(), values.size() * sizeof(float));
}

std::vector<float> ProgramInterpreter::Gradient(ParamId param) const {
  const int32_t index = Find(ProgramRole::kParamGrad, param);
  if (index < 0) return {};
  const std::vector<std::byte>& memory = memory_[static_cast<size_t>(index)];
  std::vector<float> values(memory.size() / sizeof(float));
  std::memcpy(values.data(), memory.data(), memory.size());
  return values;
}

double ProgramInterpreter::loss() const {
  double sum = 0;
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program_.buffers[i];
    if (buffer.role != ProgramRole::kLoss) continue;
    double value;
    std::memcpy(&value, memory_[i].data(), sizeof value);
    sum += program_.losses.at(static_cast<size_t>(buffer.loss.value)).weight * value;
  }
  return sum;
}

std::vector<float> ProgramInterpreter::logits() const {
  const std::vector<std::byte>& memory =
      memory_.at(static_cast<size_t>(Find(ProgramRole::kLogits)));
  std::vector<float> values(memory.size() / sizeof(float));
  std::memcpy(values.data(), memory.data(), memory.size());
  return values;
}

void ProgramInterpreter::RunOps(const std::vector<ProgramOp>& ops) {
  const std::unique_ptr<Stream> stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  for (const ProgramOp& op : ops)
    std::visit(
        [&]<template <class> class Op>(const Op<View>& typed) {
          if constexpr (requires(const Op<TensorView>& bound) { kernels_(bound, *stream); })
            RunOp(
                kernels_, typed, [&](const View& view) { return Bind(view); }, *stream);
          else
            throw std::logic_error(op.label + ": a collective in a program");
        },
        op.op);
}

void ProgramInterpreter::Run() {
  if (const int32_t index = Find(ProgramRole::kScalars); index >= 0)
    std::memcpy(memory_[static_cast<size_t>(index)].data(), &scalars_, sizeof scalars_);
  RunOps(program_.prologue);
  RunOps(program_.forward);
  RunOps(program_.backward);
}

}  // namespace millrace::test
