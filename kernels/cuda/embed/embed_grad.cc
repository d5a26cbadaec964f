#include "kernels/cuda/embed/embed_grad.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/embed/embed_grad_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// The rows sorted by token, in scratch, and what adds them up.
TableGradArgs SortedTable(const EmbedGradOp<TensorView>& op, const TokenRows& tokens,
                          const Launch& launch) {
  const EmbedGradScratch layout{op.d_out.dim(0), op.d_table.dim(0), op.d_table.dim(1)};
  std::byte* const scratch = ScratchOf(op.scratch, layout.bytes(), "embed_grad");
  const auto piece = [&](int64_t offset) { return reinterpret_cast<int32_t*>(scratch + offset); };
  TokenSortArgs sort;
  sort.tokens = tokens;
  sort.length = Divisor(std::max<int64_t>(1, tokens.length));
  sort.first = static_cast<int>(op.row_begin.value());
  sort.rows = static_cast<int>(layout.rows);
  sort.tile = static_cast<int>(layout.sort_tile());
  sort.blocks = static_cast<int>(layout.sort_blocks());
  sort.passes = layout.passes();
  sort.digit_bits = layout.digit_bits();
  for (int i = 0; i < 2; ++i) {
    sort.keys[i] = piece(layout.keys(i));
    sort.order[i] = piece(layout.order(i));
  }
  sort.counts = piece(layout.counts());
  LaunchTokenSort(sort, launch);

  TableGradArgs table;
  const int result = (sort.passes - 1) % 2;
  table.d_table = RowsOf(op.d_table, "d_table", kF16Too);
  table.keys = sort.keys[result];
  table.order = sort.order[result];
  table.partials = reinterpret_cast<float*>(piece(layout.partials()));
  table.vocab = layout.vocab;
  table.tile = static_cast<int>(layout.sum_tile());
  table.tiles = static_cast<int>(layout.sum_tiles());
  table.accumulate = op.table_update == Update::kAccumulate;
  return table;
}

}  // namespace

void CudaEmbedGrad(const EmbedGradOp<TensorView>& op, Stream& stream) {
  const TokenRows tokens = TokensOf(op.tokens, op.scalars, op.parity_stride);
  const int64_t all_rows = tokens.batch * tokens.length, first = op.row_begin.value(),
                rows = op.d_out.dim(0), columns = op.d_out.dim(1);
  MR_CHECK(first >= 0 && first + rows <= all_rows, "embed_grad: rows [{}, {}) of {} tokens", first,
           first + rows, all_rows);
  MR_CHECK_LE(std::max(all_rows, columns), std::numeric_limits<int32_t>::max() / 2,
              "embed_grad: rows or columns of d_out");
  const Launch launch = LaunchOn(stream);
  EmbedGradArgs args;
  args.d_out = RowsOf(op.d_out, "d_out", kF16Too);
  args.rows = static_cast<int>(rows);
  args.columns = static_cast<int>(columns);
  if (op.d_table) {
    MR_CHECK_EQ(op.d_table.dim(1), columns, "embed_grad: columns of d_table and d_out");
    if (columns > 0 && op.d_table.dim(0) > 0) args.table = SortedTable(op, tokens, launch);
  }
  if (op.d_positions) {
    const std::array<int64_t, 2> starts = ChunkStarts(op.rows, 2 * tokens.length);
    args.positions.positions = op.rows.ranks * tokens.length * (op.rows.split() ? 2 : 1);
    args.positions.d_positions =
        RowsOf(op.d_positions, args.positions.positions, columns, "d_positions", kF16Too);
    args.positions.documents = IntsOf(op.documents, all_rows, "documents");
    args.positions.batch = tokens.batch;
    args.positions.length = tokens.length;
    for (size_t i = 0; i < starts.size(); ++i) args.positions.start[i] = starts[i];
    args.positions.first = first;
    args.positions.accumulate = op.positions_update == Update::kAccumulate;
  }
  LaunchEmbedGrad(args, launch);
}

}  // namespace millrace
