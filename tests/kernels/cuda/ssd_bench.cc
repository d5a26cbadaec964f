// The ops of a Mamba-2 mixer at the sizes of published hybrids, on this GPU: times of the scan,
// forward and backward, and of what stands around it. A markdown table on stdout.
//
//   ssd_bench [SECONDS [BATCH LENGTH HEADS]]
//
// SECONDS (1): how long each op is called in a row, so that the power cap is in force as in
// training. BATCH, LENGTH and HEADS: one size in place of those of the table.
//
// Milliseconds per call: the median of batches of calls, the least and the most. GB/s: operands
// once, without scratch; TFLOP/s: Flops() of the scan. Operands are random, steps between 0.001 and
// 0.1; calls follow each other on the same operands.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels/cuda/mamba/mamba.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

struct Size {
  int64_t batch, length, heads;
  int64_t channels = 64, groups = 8, states = 128;

  int64_t inner() const { return heads * channels; }
  int64_t conv() const { return inner() + 2 * groups * states; }
  int64_t columns() const { return inner() + conv() + heads; }
};

struct Times {
  double median, least, most;
};

// Batches of calls, for so many seconds.
Times Time(CudaStream& stream, double seconds, const std::function<void()>& call) {
  constexpr int kCalls = 10;
  cudaEvent_t begin, end;
  MR_CUDA(cudaEventCreate(&begin));
  MR_CUDA(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> batches;
  for (double total = 0; total < seconds * 1e3 || batches.size() < 5;) {
    float elapsed = 0;
    MR_CUDA(cudaEventRecord(begin, stream.get()));
    for (int i = 0; i < kCalls; ++i) call();
    MR_CUDA(cudaEventRecord(end, stream.get()));
    MR_CUDA(cudaEventSynchronize(end));
    MR_CUDA(cudaEventElapsedTime(&elapsed, begin, end));
    batches.push_back(static_cast<double>(elapsed) / kCalls);
    total += static_cast<double>(elapsed);
  }
  MR_CUDA(cudaEventDestroy(begin));
  MR_CUDA(cudaEventDestroy(end));
  std::sort(batches.begin(), batches.end());
  return {batches[batches.size() / 2], batches.front(), batches.back()};
}

template <template <class> class Op>
Times Row(CudaStream& stream, double seconds, const Size& size, const char* what,
          void (*entry)(const Op<TensorView>&, Stream&), const Op<TensorView>& op) {
  const auto shape_of = [](const TensorView& v) { return Shape{v.layout, static_cast<bool>(v)}; };
  const OpCost cost = Cost(ConvertOp<Op, TensorView, Shape>(op, shape_of));
  const Times t = Time(stream, seconds, [&] { entry(op, stream); });
  fmt::print("| B {} T {} H {} | {} | {:.3f} | {:.3f} to {:.3f} | {:.0f} | {:.1f} |\n", size.batch,
             size.length, size.heads, what, t.median, t.least, t.most,
             static_cast<double>(cost.read_bytes + cost.write_bytes) / t.median / 1e6,
             cost.flops / t.median / 1e9);
  std::fflush(stdout);
  return t;
}

// Columns of fused rows, as a mixer has them.
TensorView Columns(const TensorView& rows, int64_t first, int64_t heads, int64_t width) {
  TensorView view = rows;
  view.data += first * Bytes(rows.dtype());
  view.layout = DenseLayout(rows.dtype(), {rows.dim(0), rows.dim(1), heads, width});
  view.layout.strides = {rows.stride(0), rows.stride(1), width, 1};
  return view;
}
TensorView Columns(const TensorView& rows, int64_t first, int64_t width) {
  TensorView view = Columns(rows, first, 1, width);
  view.layout = DenseLayout(rows.dtype(), {rows.dim(0), rows.dim(1), width});
  view.layout.strides = {rows.stride(0), rows.stride(1), 1};
  return view;
}
TensorView Flat(TensorView rows) {  // [B,T,C] as [B*T,C]
  const Layout from = rows.layout;
  rows.layout = DenseLayout(rows.dtype(), {from.dims[0] * from.dims[1], from.dims[2]});
  rows.layout.strides = {from.strides[1], from.strides[2]};
  return rows;
}

class Bench {
 public:
  Bench(CudaDevice& device, const Size& size, double seconds)
      : size_(size),
        seconds_(seconds),
        stream_(device.MakeStream(StreamRole::kCompute)),
        operands_(device, *stream_) {}

  void Run() {
    MakeScan();
    MakeConv();
    MakeNorm();
    CudaStream& stream = AsCuda(*stream_);
    CudaMambaConv(conv_, *stream_);  // steps as they are in training
    const Times forward = Row(stream, seconds_, size_, "scan", CudaSsdScan, scan_);
    const Times backward = Row(stream, seconds_, size_, "scan, backward", CudaSsdScanGrad, grad_);
    fmt::print("| | scan, both | {:.3f} | {:.3f} to {:.3f} | | |\n",
               forward.median + backward.median, forward.least + backward.least,
               forward.most + backward.most);
    Row(stream, seconds_, size_, "convolution, steps", CudaMambaConv, conv_);
    Row(stream, seconds_, size_, "convolution, steps, backward", CudaMambaConvGrad, conv_grad_);
    Row(stream, seconds_, size_, "gated norm", CudaGatedNorm, norm_);
    Row(stream, seconds_, size_, "gated norm, backward", CudaGatedNormGrad, norm_grad_);
  }

 private:
  Layout Rows(DType dtype, int64_t columns) const {
    return DenseLayout(dtype, {size_.batch, size_.length, columns});
  }
  template <template <class> class Op>
  void AddScratch(Op<TensorView>& op) {
    const auto shape_of = [](const TensorView& v) { return Shape{v.layout, static_cast<bool>(v)}; };
    const int64_t bytes =
        WorkspaceBytes(ConvertOp<Op, TensorView, Shape>(op, shape_of), Backend::kCuda);
    op.scratch = operands_.New(DenseLayout(DType::kU8, {bytes}));
  }

  void MakeScan() {
    const Size& s = size_;
    const TensorView xbc = operands_.Random(Rows(DType::kBF16, s.conv())),
                     d_xbc = operands_.New(Rows(DType::kBF16, s.conv()));
    const int64_t of_groups = s.groups * s.states;
    dt_ = operands_.New(Rows(DType::kF32, s.heads));
    const Layout heads = DenseLayout(DType::kF32, {s.heads});
    scan_.x = grad_.x = Columns(xbc, 0, s.heads, s.channels);
    scan_.b = grad_.b = Columns(xbc, s.inner(), s.groups, s.states);
    scan_.c = grad_.c = Columns(xbc, s.inner() + of_groups, s.groups, s.states);
    scan_.dt = grad_.dt = dt_;
    scan_.a_log = grad_.a_log = operands_.Random(heads);
    scan_.d = grad_.d = operands_.Random(heads);
    const Layout out = DenseLayout(DType::kBF16, {s.batch, s.length, s.heads, s.channels});
    scan_.out = operands_.New(out);
    grad_.d_out = operands_.Random(out);
    grad_.d_x = Columns(d_xbc, 0, s.heads, s.channels);
    grad_.d_b = Columns(d_xbc, s.inner(), s.groups, s.states);
    grad_.d_c = Columns(d_xbc, s.inner() + of_groups, s.groups, s.states);
    grad_.d_dt = operands_.New(Rows(DType::kF32, s.heads));
    grad_.d_a_log = operands_.New(heads), grad_.d_d = operands_.New(heads);
    AddScratch(scan_);
    AddScratch(grad_);
  }

  void MakeConv() {
    const Size& s = size_;
    rows_ = operands_.Random(Rows(DType::kBF16, s.columns()));
    d_rows_ = operands_.New(Rows(DType::kBF16, s.columns()));
    conv_.dt_min = conv_grad_.dt_min = 1e-3f, conv_.dt_max = conv_grad_.dt_max = 0.1f;
    conv_.x = conv_grad_.x = Columns(rows_, s.inner(), s.conv());
    conv_.dt_raw = conv_grad_.dt_raw = Columns(rows_, s.inner() + s.conv(), s.heads);
    const Layout weight = DenseLayout(DType::kBF16, {s.conv(), 4}),
                 bias = DenseLayout(DType::kBF16, {s.conv()}),
                 heads = DenseLayout(DType::kF32, {s.heads});
    conv_.weight = conv_grad_.weight = operands_.Random(weight);
    conv_.bias = conv_grad_.bias = operands_.Random(bias);
    conv_.dt_bias = conv_grad_.dt_bias = operands_.Random(heads);
    conv_.out = operands_.New(Rows(DType::kBF16, s.conv()));
    conv_.dt = dt_;
    conv_grad_.d_out = operands_.Random(Rows(DType::kBF16, s.conv()));
    conv_grad_.d_dt = operands_.Random(Rows(DType::kF32, s.heads));
    conv_grad_.d_x = Columns(d_rows_, s.inner(), s.conv());
    conv_grad_.d_dt_raw = Columns(d_rows_, s.inner() + s.conv(), s.heads);
    conv_grad_.d_weight = operands_.New(weight), conv_grad_.d_bias = operands_.New(bias);
    conv_grad_.d_dt_bias = operands_.New(heads);
    AddScratch(conv_grad_);
  }

  void MakeNorm() {
    const Size& s = size_;
    const Layout rows = DenseLayout(DType::kBF16, {s.batch * s.length, s.inner()});
    norm_.y = norm_grad_.y = operands_.Random(rows);
    norm_.z = norm_grad_.z = Flat(Columns(rows_, 0, s.inner()));
    norm_.weight = norm_grad_.weight = operands_.Random(DenseLayout(DType::kF32, {s.inner()}));
    norm_.out = operands_.New(rows);
    norm_.rstd = norm_grad_.rstd =
        operands_.Random(DenseLayout(DType::kF32, {s.batch * s.length, s.groups}));
    norm_grad_.d_out = operands_.Random(rows);
    norm_grad_.d_y = operands_.New(rows);
    norm_grad_.d_z = Flat(Columns(d_rows_, 0, s.inner()));
    norm_grad_.rest = Flat(Columns(d_rows_, s.inner(), s.columns() - s.inner()));
    norm_grad_.d_weight = operands_.New(DenseLayout(DType::kF32, {s.inner()}));
    AddScratch(norm_grad_);
  }

  const Size size_;
  const double seconds_;
  std::unique_ptr<Stream> stream_;
  DeviceOperands operands_;
  TensorView rows_, d_rows_, dt_;
  SsdScanOp<TensorView> scan_{};
  SsdScanGradOp<TensorView> grad_{};
  MambaConvOp<TensorView> conv_{};
  MambaConvGradOp<TensorView> conv_grad_{};
  GatedNormOp<TensorView> norm_{};
  GatedNormGradOp<TensorView> norm_grad_{};
};

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  CudaDevice device(0);
  fmt::print("{}\n\n| size | op | ms | least to most | GB/s | TFLOP/s |\n", device.name());
  fmt::print("|---|---|---|---|---|---|\n");
  std::vector<Size> sizes = {{2, 4096, 64}, {1, 8192, 64}, {2, 4096, 128}};
  if (argc > 4) sizes = {{std::atol(argv[2]), std::atol(argv[3]), std::atol(argv[4])}};
  for (const Size& size : sizes) Bench(device, size, seconds).Run();
  return 0;
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  try {
    return millrace::test::Main(argc, argv);
  } catch (const millrace::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
