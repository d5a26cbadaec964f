#include <algorithm>

#include "kernels/ops/cost.h"
#include "kernels/ops/cpu_blocking.h"
#include "kernels/ops/cuda_ssd.h"
#include "kernels/ops/ssd_sizes.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

int64_t Dim(const Shape& s, int i) { return s.layout.dims[static_cast<size_t>(i)]; }

// Pairs (i, j), j <= i, of all chunks of a sequence.
double PairsOf(const SsdSizes& s) {
  const auto triangle = [](int64_t n) {
    return static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  };
  return static_cast<double>(s.length / s.chunk) * triangle(s.chunk) + triangle(s.length % s.chunk);
}

}  // namespace

int64_t WorkspaceBytes(const MambaConvGradOp<Shape>& op, Backend backend) {
  const int64_t channels = Dim(op.x, 2), width = Dim(op.weight, 1), heads = Dim(op.dt_raw, 2);
  const int64_t sums = channels * (width + 1) + heads;
  return backend == Backend::kCpu ? sums * 8
                                  : cuda::MambaConvGradBytes(Dim(op.x, 0), Dim(op.x, 1), sums);
}

int64_t WorkspaceBytes(const SsdScanOp<Shape>& op, Backend backend) {
  const SsdSizes sizes = SsdSizesOf(op);
  return backend == Backend::kCpu ? cpu::SsdScanBytes(sizes) : cuda::SsdScanBytes(sizes);
}

int64_t WorkspaceBytes(const SsdScanRowsOp<Shape>& op, Backend backend) {
  if (backend == Backend::kCuda) return 0;
  const int64_t heads = op.dt.layout.dims[1];
  return cpu::SsdScanBytes({.batch = 1,
                            .length = std::min(op.chunk, op.length),
                            .heads = heads,
                            .channels = op.out.layout.dims[1] / heads,
                            .groups = op.groups,
                            .states = op.states,
                            .chunk = op.chunk});
}

int64_t WorkspaceBytes(const SsdScanGradOp<Shape>& op, Backend backend) {
  const SsdSizes sizes = SsdSizesOf(op);
  return backend == Backend::kCpu ? cpu::SsdScanGradBytes(sizes) : cuda::SsdScanGradBytes(sizes);
}

int64_t WorkspaceBytes(const GatedNormGradOp<Shape>& op, Backend backend) {
  const int64_t columns = Dim(op.y, 1);
  return backend == Backend::kCpu ? columns * 8 : cuda::GatedNormGradBytes(columns);
}

std::string WhyUnsupported(const MambaConvOp<Shape>& op, Backend backend) {
  const int64_t width = Dim(op.weight, 1), limit = backend == Backend::kCpu ? cpu::kConvWidth : 4;
  if (width < 1 || width > limit)
    return fmt::format("mamba_conv: a convolution of width {}; 1 to {} are allowed", width, limit);
  if (op.documents && backend == Backend::kCuda)
    return "a convolution and a scan that begin anew with each document (data.document_mask) run "
           "on the CPU alone so far";
  return "";
}

std::string WhyUnsupported(const SsdScanOp<Shape>& op, Backend) {
  const SsdSizes s = SsdSizesOf(op);
  if (s.groups <= 0 || s.heads % s.groups != 0)
    return fmt::format("ssd_scan: {} heads are not a multiple of {} groups", s.heads, s.groups);
  if (op.chunk < 1) return fmt::format("ssd_scan: a chunk of {}; at least 1 is needed", op.chunk);
  return "";
}

std::string WhyUnsupported(const GatedNormOp<Shape>& op, Backend) {
  const int64_t columns = Dim(op.y, 1), groups = Dim(op.rstd, 1);
  if (groups <= 0 || columns % groups != 0)
    return fmt::format("gated_norm: {} columns are not a multiple of {} groups", columns, groups);
  return "";
}

double Flops(const SsdScanRowsOp<Shape>& op) {
  return 7.0 * static_cast<double>(op.out.layout.numel() * op.states);
}

double Flops(const SsdScanOp<Shape>& op) {
  const SsdSizes s = SsdSizesOf(op);
  const auto heads = static_cast<double>(s.heads), groups = static_cast<double>(s.groups),
             channels = static_cast<double>(s.channels), states = static_cast<double>(s.states);
  const double per_pair = groups * states + heads * channels;
  const double per_row = 2 * heads * channels * states;  // of the state, into it
  return 2.0 * static_cast<double>(s.batch) *
         (PairsOf(s) * per_pair + static_cast<double>(s.length) * per_row);
}

double Flops(const SsdScanGradOp<Shape>& op) {
  const SsdSizes s = SsdSizesOf(op);
  const auto heads = static_cast<double>(s.heads), groups = static_cast<double>(s.groups),
             channels = static_cast<double>(s.channels), states = static_cast<double>(s.states);
  // c.b, d_c and d_b of a group's summed pairs; d_out.x and d_x of each head's.
  const double per_pair = 3 * groups * states + 2 * heads * channels;
  // The states again and their gradients; what these two give to x, b and c.
  const double per_row = 5 * heads * channels * states;
  return 2.0 * static_cast<double>(s.batch) *
         (PairsOf(s) * per_pair + static_cast<double>(s.length) * per_row);
}

}  // namespace millrace
