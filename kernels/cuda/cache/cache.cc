#include "kernels/cuda/cache/cache.h"

#include <limits>

#include "kernels/cuda/cache/cache_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// Whether rows of heads [R,H,D] are bf16; f32 else.
bool IsNarrow(const TensorView& x, const char* op) {
  MR_CHECK((x.dtype() == DType::kF32 || x.dtype() == DType::kBF16) && x.layout.rank == 3 &&
               (x.dim(2) <= 1 || x.stride(2) == 1),
           "{}: x is {}; f32 or bf16 [R,H,D] with dense heads is allowed", op, ToString(x.layout));
  return x.dtype() == DType::kBF16;
}

Heads HeadsOf(const TensorView& x) { return {x.data, x.stride(0), x.stride(1)}; }

CachePlaces PlacesOf(const TensorView& at, const TensorView& slots, const TensorView& pages,
                     const TensorView& cache, int64_t rows) {
  MR_CHECK(cache.layout.rank == 3 && cache.layout.contiguous() && pages.layout.rank == 2,
           "the cache is {}, its pages {}", ToString(cache.layout), ToString(pages.layout));
  return {IntsOf(at, rows, "at"),
          IntsOf(slots, rows, "slots"),
          IntsOf(pages, pages.numel(), "pages"),
          cache.data,
          pages.dim(1),
          cache.dim(1),
          cache.dim(2)};
}

}  // namespace

void CudaClearCache(const ClearCacheOp<TensorView>& op, Stream& stream) {
  MR_CHECK(op.x.layout.contiguous(), "clear_cache: x is {}", ToString(op.x.layout));
  MR_CUDA(
      cudaMemsetAsync(op.x.data, 0, static_cast<size_t>(op.x.bytes()), LaunchOn(stream).stream));
}

void CudaKeepRange(const KeepRangeOp<TensorView>& op, Stream& stream) {
  MR_CHECK(op.x.layout.contiguous() && op.out.layout.contiguous() &&
               op.x.dtype() == op.out.dtype() && op.first + op.x.dim(1) <= op.pitch,
           "keep_range: x is {} from {} of {}, out is {}", ToString(op.x.layout), op.first,
           op.pitch, ToString(op.out.layout));
  const int64_t size = Bytes(op.x.dtype());
  const cudaStream_t on = LaunchOn(stream).stream;
  if (op.update == Update::kOverwrite)
    MR_CUDA(cudaMemsetAsync(op.out.data, 0, static_cast<size_t>(op.out.bytes()), on));
  ForEachKept(
      op, op.x.dim(0), op.x.dim(1), op.out.numel(), [&](int64_t from, int64_t to, int64_t count) {
        MR_CUDA(cudaMemcpyAsync(op.out.data + to * size, op.x.data + from * size,
                                static_cast<size_t>(count * size), cudaMemcpyDeviceToDevice, on));
      });
}

void CudaEmbedRows(const EmbedRowsOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.out.dim(0), columns = op.table.dim(1);
  const Rows table = RowsOf(op.table, "table"), positions = RowsOf(op.positions, "positions"),
             out = RowsOf(op.out, rows, columns, "out");
  EmbedRowsArgs args;
  args.tokens = IntsOf(op.tokens, rows, "tokens");
  args.at = IntsOf(op.at, rows, "at");
  args.table = table.data, args.table_stride = table.stride, args.table_bf16 = table.bf16;
  args.positions = positions.data, args.positions_stride = positions.stride;
  args.positions_bf16 = positions.bf16;
  args.out = out.data, args.out_stride = out.stride, args.out_bf16 = out.bf16;
  args.columns = columns;
  args.rows = static_cast<int>(rows);
  LaunchEmbedRows(args, LaunchOn(stream));
}

void CudaCachedAttention(const CachedAttentionOp<TensorView>& op, Stream& stream) {
  const bool bf16 = IsNarrow(op.q, "cached_attention");
  MR_CHECK(op.out.dtype() == op.q.dtype() && op.cache.dtype() == op.q.dtype() &&
               op.cache.dim(2) == 2 * op.kv_heads * op.q.dim(2) &&
               IsNarrow(op.out, "cached_attention") == bf16,
           "cached_attention: q is {}, out {}, the cache {}", ToString(op.q.layout),
           ToString(op.out.layout), ToString(op.cache.layout));
  MR_CHECK_LE(op.cache.dim(0) * op.cache.dim(1), std::numeric_limits<int32_t>::max(),
              "cached_attention: positions of all pages");
  MR_CHECK(op.x.dtype() == op.cache.dtype() && op.x.dim(1) == op.cache.dim(2),
           "cached_attention: x is {}, the cache {}", ToString(op.x.layout),
           ToString(op.cache.layout));
  const Rows x = RowsOf(op.x, op.q.dim(0), op.cache.dim(2), "x");
  CachedAttentionArgs args;
  args.q = HeadsOf(op.q), args.out = HeadsOf(op.out);
  args.x = x.data, args.x_stride = x.stride;
  args.places = PlacesOf(op.at, op.slots, op.pages, op.cache, op.q.dim(0));
  args.rows = static_cast<int>(op.q.dim(0));
  args.heads = static_cast<int>(op.q.dim(1));
  args.kv_heads = static_cast<int>(op.kv_heads);
  args.depth = static_cast<int>(op.q.dim(2));
  MR_CHECK_LE(args.depth, kMostCachedDepth, "cached_attention: head dimension");
  args.page_tokens = Divisor(args.places.page_tokens);
  args.per_kv = Divisor(op.q.dim(1) / op.kv_heads);
  args.window = op.window;
  args.scale = op.scale;
  const Launch launch = LaunchOn(stream);
  if (op.in_order) {
    MR_CHECK(bf16 && AttendsTiles(args) && op.window == 0,
             "cached_attention in order: q is {}, window {}; bf16 heads of 64 or 128 at multiples "
             "of 16 bytes and no window are allowed",
             ToString(op.q.layout), op.window);
    if (op.rows_from == RowsFrom::kManySequences) return LaunchAttendInOrder(args, launch);
  }
  if (bf16 && op.rows_from == RowsFrom::kManySequences && SharesTiles(args, launch))
    return LaunchAttendInOrder(args, launch);
  const bool tiles = bf16 && op.rows_from == RowsFrom::kOneSequence && AttendsTiles(args);
  if (!tiles && bf16 && AttendsWide(args)) return LaunchAttendRows(args, launch);
  LaunchCacheRows(args, bf16, launch);
  if (tiles)
    LaunchAttendPrompt(args, launch);
  else
    LaunchCachedAttention(args, bf16, launch);
}

void CudaMambaConvRows(const MambaConvRowsOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.x.dim(0), channels = op.x.dim(1), heads = op.dt_raw.dim(1);
  const Rows x = RowsOf(op.x, "x"), dt_raw = RowsOf(op.dt_raw, rows, heads, "dt_raw"),
             out = RowsOf(op.out, rows, channels, "out"), weight = RowsOf(op.weight, "weight"),
             bias = ColumnsOf(op.bias, channels, "bias"),
             dt_bias = ColumnsOf(op.dt_bias, heads, "dt_bias");
  MR_CHECK(x.bf16 == out.bf16 && x.bf16 == dt_raw.bf16 && op.inputs.dtype() == op.x.dtype() &&
               op.inputs.layout.contiguous() && op.inputs.dim(1) == op.weight.dim(1) &&
               op.inputs.dim(2) == channels && op.weight.layout.contiguous(),
           "mamba_conv_rows: x is {}, out {}, inputs {}, weight {}", ToString(op.x.layout),
           ToString(op.out.layout), ToString(op.inputs.layout), ToString(op.weight.layout));
  MambaConvRowsArgs args;
  args.x = x.data, args.x_stride = x.stride;
  args.dt_raw = dt_raw.data, args.dt_raw_stride = dt_raw.stride;
  args.out = out.data, args.out_stride = out.stride;
  args.weight = weight.data, args.weight_bf16 = weight.bf16;
  args.bias = bias.data, args.bias_bf16 = bias.bf16;
  args.dt_bias = dt_bias.data, args.dt_bias_bf16 = dt_bias.bf16;
  args.at = IntsOf(op.at, rows, "at");
  args.slots = IntsOf(op.slots, rows, "slots");
  args.inputs = op.inputs.data;
  args.dt = FloatsOf(op.dt, rows * heads, "dt");
  args.rows = static_cast<int>(rows), args.channels = static_cast<int>(channels);
  args.taps = static_cast<int>(op.weight.dim(1)), args.heads = static_cast<int>(heads);
  args.dt_min = op.dt_min, args.dt_max = op.dt_max;
  LaunchMambaConvRows(args, x.bf16, LaunchOn(stream));
}

void CudaSsdScanRows(const SsdScanRowsOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.xbc.dim(0), heads = op.dt.dim(1), inner = op.out.dim(1);
  const Rows xbc = RowsOf(op.xbc, rows, inner + 2 * op.groups * op.states, "xbc"),
             out = RowsOf(op.out, rows, inner, "out"), a_log = ColumnsOf(op.a_log, heads, "a_log"),
             d = ColumnsOf(op.d, heads, "d");
  MR_CHECK_EQ(xbc.bf16, out.bf16, "ssd_scan_rows: is x|B|C bf16, and is out");
  SsdScanRowsArgs args;
  args.xbc = xbc.data, args.xbc_stride = xbc.stride;
  args.out = out.data, args.out_stride = out.stride;
  args.a_log = a_log.data, args.a_log_bf16 = a_log.bf16;
  args.d = d.data, args.d_bf16 = d.bf16;
  args.dt = FloatsOf(op.dt, rows * heads, "dt");
  args.at = IntsOf(op.at, rows, "at");
  args.slots = IntsOf(op.slots, rows, "slots");
  args.state = FloatsOf(op.state, op.state.numel(), "state");
  args.rows = static_cast<int>(rows), args.heads = static_cast<int>(heads);
  args.channels = static_cast<int>(inner / heads);
  args.groups = static_cast<int>(op.groups), args.states = static_cast<int>(op.states);
  LaunchSsdScanRows(args, xbc.bf16, LaunchOn(stream));
}

}  // namespace millrace
