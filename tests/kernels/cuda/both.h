// Runs one op on the GPU and on the CPU, at sizes that the contract's small shapes do not reach.
//
// The GPU runs it twice: as a call, and captured into a graph that is launched once, from the same
// operands. Both must leave the same bits.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ops/cost.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/cuda/cuda_device.h"
#include "tests/kernels/support/memory.h"

namespace millrace::test {

// The op over copies of its operands; operands that are one stay one.
template <template <class> class Op>
Op<TensorView> CopyOf(Memory& memory, const Op<TensorView>& op) {
  std::map<std::byte*, TensorView> copies;
  return ConvertOp<Op, TensorView, TensorView>(op, [&](const TensorView& view) {
    if (!view) return view;
    const auto found = copies.find(view.data);
    if (found != copies.end()) return found->second;
    return copies[view.data] = memory.Clone(view);
  });
}

class Both {
 public:
  // The op's views lie in host memory; results are left there.
  template <template <class> class Op>
  void OnCpu(KernelFn<Op> KernelTable::*entry, const Op<TensorView>& op) {
    Op<TensorView> bound = op;
    std::vector<std::byte> scratch;
    if constexpr (requires { bound.scratch; }) {
      scratch.resize(static_cast<size_t>(ScratchBytes(op, Backend::kCpu)));
      if (!scratch.empty()) bound.scratch = Scratch(scratch.data(), std::ssize(scratch));
    }
    (CpuKernels().*entry)(bound, *host_stream_);
  }

  template <template <class> class Op>
  void OnGpu(KernelFn<Op> KernelTable::*entry, const Op<TensorView>& op) {
    std::map<std::byte*, Copy> copies;
    Op<TensorView> bound = op;
    Op<TensorView>::Visit(bound, [&](TensorView& view, Access access, std::string_view) {
      if (!view || access == Access::kScratch) return;
      auto [it, fresh] = copies.try_emplace(view.data);
      if (fresh)
        it->second = {
            device_.Allocate(view.layout.span_bytes(), "operand"), view.layout.span_bytes(), {}};
      view.data = it->second.buffer->data();
    });
    std::unique_ptr<DeviceBuffer> scratch;
    if constexpr (requires { bound.scratch; }) {
      const int64_t bytes = ScratchBytes(op, Backend::kCuda);
      scratch = device_.Allocate(bytes, "scratch");
      device_.EnqueueFill(scratch->data(), std::byte{0xff}, bytes, *stream_);
      if (bytes > 0) bound.scratch = Scratch(scratch->data(), bytes);
    }
    Upload(copies);
    (CudaKernels().*entry)(bound, *stream_);
    for (auto& [host, copy] : copies) copy.result = Download(copy);
    Upload(copies);
    device_.BeginCapture(*stream_);
    (CudaKernels().*entry)(bound, *stream_);
    const auto graph = device_.EndCapture(*stream_);
    graph->Launch(*stream_);
    for (auto& [host, copy] : copies) {
      INFO("a call and its captured graph leave the same bits");
      CHECK((copy.result == Download(copy)));
      std::memcpy(host, copy.result.data(), copy.result.size());
    }
  }

 private:
  struct Copy {
    std::unique_ptr<DeviceBuffer> buffer;
    int64_t bytes = 0;
    std::vector<std::byte> result;
  };

  template <template <class> class Op>
  static int64_t ScratchBytes(const Op<TensorView>& op, Backend backend) {
    const auto shape_of = [](const TensorView& view) {
      return Shape{view.layout, static_cast<bool>(view)};
    };
    return WorkspaceBytes(ConvertOp<Op, TensorView, Shape>(op, shape_of), backend);
  }
  static TensorView Scratch(std::byte* data, int64_t bytes) {
    return {data, DenseLayout(DType::kU8, {bytes})};
  }
  void Upload(const std::map<std::byte*, Copy>& copies) {
    for (const auto& [host, copy] : copies)
      device_.CopyFromHost(copy.buffer->data(), host, copy.bytes, *stream_);
  }
  std::vector<std::byte> Download(const Copy& copy) {
    std::vector<std::byte> bytes(static_cast<size_t>(copy.bytes));
    device_.CopyToHost(bytes.data(), copy.buffer->data(), copy.bytes, *stream_);
    return bytes;
  }

  CudaDevice device_{0};
  std::unique_ptr<Stream> stream_ = device_.MakeStream(StreamRole::kCompute);
  std::unique_ptr<Device> host_ = MakeHostDevice();
  std::unique_ptr<Stream> host_stream_ = host_->MakeStream(StreamRole::kCompute);
};

// Every element of got is within bound(index) of expected, and at most `ulps` units of the dtype
// apart beyond that.
template <class Bound>
void CheckClose(const TensorView& got, const TensorView& expected, const char* name,
                Bound&& bound) {
  const double unit = got.dtype() == DType::kBF16  ? 0x1p-7
                      : got.dtype() == DType::kF32 ? 0x1p-23
                                                   : 0x1p-52;
  double worst = 0, worst_got = 0, worst_expected = 0;
  Index where{};
  ForEach(got.layout, [&](const Index& i) {
    const double a = Get(got, i), b = Get(expected, i);
    const double ratio = a == b ? 0 : std::abs(a - b) / (bound(i) + unit * std::abs(b) + 0x1p-120);
    if (ratio <= worst || worst != worst) return;
    worst = ratio, worst_got = a, worst_expected = b, where = i;
  });
  INFO(name << ' ' << ToString(got.layout) << ": difference / bound = " << worst << " at ["
            << where[0] << ", " << where[1] << "]: " << worst_got << ", CPU " << worst_expected);
  CHECK(worst <= 1);
}

// Of a step that is applied, its numbers unlike those of a fresh run.
inline StepScalars Scalars() {
  StepScalars scalars{};
  scalars.inv_valid_tokens = 1.0 / 37;
  scalars.inject_grad_unit = -1;
  scalars.lr = 3e-3;
  scalars.clip_scale = 0.75;
  scalars.applied = 1;
  scalars.adam_t = 17;
  return scalars;
}

}  // namespace millrace::test
