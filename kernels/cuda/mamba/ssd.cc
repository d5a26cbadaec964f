#include <algorithm>
#include <limits>

#include "kernels/cuda/mamba/mamba.h"
#include "kernels/cuda/mamba/ssd_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

void Check(const TensorView& v, const SsdSizes& s, int64_t heads, int64_t columns,
           const char* name) {
  MR_CHECK(v.layout.rank == 4 && v.dim(0) == s.batch && v.dim(1) == s.length && v.dim(2) == heads &&
               v.dim(3) == columns,
           "ssd_scan: {} is {}; [{}, {}, {}, {}] is expected", name, ToString(v.layout), s.batch,
           s.length, heads, columns);
}

// Rows and heads are less than 2^30 elements apart.
Sequence NearSequenceOf(const TensorView& v, const char* name) {
  const Sequence s = SequenceOf(v, name);
  MR_CHECK_LE(std::max(s.rows.stride, s.head_stride), std::numeric_limits<int32_t>::max() / 2,
              "ssd_scan: strides of {} on CUDA", name);
  return s;
}

template <class Op>
SsdArgs ArgsOf(const Op& op, const SsdSizes& s) {
  MR_CHECK(s.groups > 0 && s.heads % s.groups == 0 && s.chunk > 0,
           "ssd_scan: {} heads in {} groups, chunks of {}", s.heads, s.groups, s.chunk);
  MR_CHECK_LE(std::max({s.batch, s.length, s.heads * s.channels, s.groups * s.states, s.chunk}),
              std::numeric_limits<int32_t>::max() / 2, "ssd_scan: a dimension on CUDA");
  Check(op.x, s, s.heads, s.channels, "x");
  Check(op.b, s, s.groups, s.states, "b");
  Check(op.c, s, s.groups, s.states, "c");
  const auto of = [](int64_t n) { return static_cast<int>(n); };
  SsdArgs args;
  args.batch = of(s.batch), args.length = of(s.length), args.heads = of(s.heads);
  args.channels = of(s.channels), args.groups = of(s.groups), args.states = of(s.states);
  args.chunk = of(s.chunk), args.chunks = of(s.chunks());
  args.rows = of(SsdOnTensorCores(s) ? kSsdChunk : s.rows());
  args.heads_of_group = of(s.heads_of_group());
  args.x = NearSequenceOf(op.x, "x"), args.b = NearSequenceOf(op.b, "b"),
  args.c = NearSequenceOf(op.c, "c");
  args.dt = FloatsOf(op.dt, s.batch * s.length * s.heads, "dt");
  args.a_log = ColumnsOf(op.a_log, s.heads, "a_log");
  args.d = ColumnsOf(op.d, s.heads, "d");
  return args;
}

void PlaceScratch(SsdArgs& args, const SsdScratch& at, std::byte* scratch) {
  args.decay = scratch + at.decay;
  args.states_before = scratch + at.states;
  args.steps_or_pairs = reinterpret_cast<float*>(scratch + at.steps_or_pairs);
  args.states_behind = scratch + at.d_states;
  args.d_pairs = scratch + at.d_pairs;
  args.spans = reinterpret_cast<float*>(scratch + at.spans);
  args.d_u = reinterpret_cast<float*>(scratch + at.d_u);
  args.sums = reinterpret_cast<double*>(scratch + at.sums);
  args.state_spans = reinterpret_cast<float*>(scratch + at.state_spans);
}

}  // namespace

void CudaSsdScan(const SsdScanOp<TensorView>& op, Stream& stream) {
  MR_CHECK(!op.documents, "ssd_scan: documents");  // MambaConvOp's WhyUnsupported
  const SsdSizes s = SsdSizesOf(op);
  SsdArgs args = ArgsOf(op, s);
  Check(op.out, s, s.heads, s.channels, "out");
  args.out = NearSequenceOf(op.out, "out");
  if (s.batch * s.length * s.heads * s.channels == 0) return;
  PlaceScratch(args, SsdScratch(s), ScratchOf(op.scratch, SsdScanBytes(s), "ssd_scan"));
  if (SsdOnTensorCores(s))
    LaunchSsdCores(args, LaunchOn(stream));
  else
    LaunchSsdPlain(args, LaunchOn(stream));
}

void CudaSsdScanGrad(const SsdScanGradOp<TensorView>& op, Stream& stream) {
  MR_CHECK(!op.documents, "ssd_scan: documents");  // MambaConvOp's WhyUnsupported
  const SsdSizes s = SsdSizesOf(op);
  SsdArgs args = ArgsOf(op, s);
  Check(op.d_out, s, s.heads, s.channels, "d_out");
  Check(op.d_x, s, s.heads, s.channels, "d_x");
  Check(op.d_b, s, s.groups, s.states, "d_b");
  Check(op.d_c, s, s.groups, s.states, "d_c");
  args.out = NearSequenceOf(op.d_out, "d_out");
  args.d_x = NearSequenceOf(op.d_x, "d_x");
  args.d_b = NearSequenceOf(op.d_b, "d_b"), args.d_c = NearSequenceOf(op.d_c, "d_c");
  args.d_dt = FloatsOf(op.d_dt, s.batch * s.length * s.heads, "d_dt");
  args.d_a_log = ColumnsOf(op.d_a_log, s.heads, "d_a_log");
  args.d_d = ColumnsOf(op.d_d, s.heads, "d_d");
  args.add_a_log = op.a_log_update == Update::kAccumulate;
  args.add_d = op.d_update == Update::kAccumulate;
  if (s.batch * s.length > 0) {
    PlaceScratch(args, SsdScratch(s), ScratchOf(op.scratch, SsdScanGradBytes(s), "ssd_scan_grad"));
    if (SsdOnTensorCores(s))
      LaunchSsdGradCores(args, LaunchOn(stream));
    else
      LaunchSsdGradPlain(args, LaunchOn(stream));
  }
  LaunchSsdSums(args, LaunchOn(stream));
}

}  // namespace millrace
