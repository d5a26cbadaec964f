#include "kernels/cuda/embed/embed.h"

#include <limits>

#include "kernels/cuda/embed/embed_launch.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

void CudaEmbed(const EmbedOp<TensorView>& op, Stream& stream) {
  EmbedArgs args;
  args.tokens = TokensOf(op.tokens, op.scalars, op.parity_stride);
  const int64_t rows = op.out.dim(0), columns = op.table.dim(1), first = op.row_begin.value(),
                all_rows = args.tokens.batch * args.tokens.length;
  MR_CHECK(first >= 0 && first + rows <= all_rows, "embed: rows [{}, {}) of {} tokens", first,
           first + rows, all_rows);
  MR_CHECK_LE(all_rows, std::numeric_limits<int32_t>::max(), "embed: tokens");
  args.documents = IntsOf(op.documents, all_rows, "documents");
  MR_CHECK(!op.documents || !op.rows.split(), "embed: documents in rows split over ranks");
  args.first = static_cast<uint32_t>(first);
  args.table = RowsOf(op.table, "table", kF16Too);
  args.out = RowsOf(op.out, rows, columns, "out", kF16Too);
  args.positions = RowsOf(op.positions, "positions", kF16Too);
  const std::array<int64_t, 2> starts = ChunkStarts(op.rows, 2 * args.tokens.length);
  for (size_t i = 0; i < starts.size(); ++i) args.start[i] = static_cast<uint32_t>(starts[i]);
  const int64_t length = op.rows.ranks * args.tokens.length * (op.rows.split() ? 2 : 1);
  if (op.positions)
    MR_CHECK(op.positions.dim(0) >= length && op.positions.dim(1) == columns,
             "embed: positions are {} for T = {} and table {}", ToString(op.positions.layout),
             length, ToString(op.table.layout));
  const int64_t packs = rows * Packs(columns);
  if (packs == 0) return;
  MR_CHECK_LE(packs, std::numeric_limits<int32_t>::max(), "embed: packs of eight elements");
  args.packs = static_cast<uint32_t>(packs);
  args.row_packs = Divisor(Packs(columns));
  args.length = Divisor(args.tokens.length);
  args.columns = static_cast<int>(columns);
  LaunchEmbed(args, ElementsOf({args.table, args.positions, args.out}), LaunchOn(stream));
}

void CudaTakeInput(const TakeInputOp<TensorView>& op, Stream& stream) {
  TakeInputArgs args;
  args.x = TokensOf(op.x, op.scalars, op.parity_stride);
  args.out = IntsOf(op.out, args.x.batch * args.x.length, "out");
  LaunchTakeInput(args, LaunchOn(stream));
}

void CudaSelectRow(const SelectRowOp<TensorView>& op, Stream& stream) {
  MR_CHECK(op.x.dtype() == op.out.dtype() && op.x.dim(1) == op.out.dim(1),
           "select_row: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  const int64_t bytes = Bytes(op.x.dtype());
  MR_CHECK(bytes == 2 || bytes == 4, "select_row: x is {}; f32, bf16 or f16 is allowed",
           Name(op.x.dtype()));
  SelectRowArgs args;
  args.x = op.x.data;
  args.out = op.out.data;
  args.row_stride = op.x.stride(0);
  args.x_stride = op.x.stride(1);
  args.out_stride = op.out.stride(1);
  args.columns = op.x.dim(1);
  args.bytes = static_cast<int>(bytes);
  args.scalars = ScalarsOf(op.scalars);
  LaunchSelectRow(args, LaunchOn(stream));
}

}  // namespace millrace
