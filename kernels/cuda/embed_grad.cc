#include "kernels/cuda/embed_grad.h"

#include <limits>

#include "kernels/cuda/embed_grad_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

void TableGrad(const EmbedGradOp<TensorView>& op, const TokenRows& tokens, const Launch& launch) {
  const EmbedGradScratch layout{tokens.batch * tokens.length, op.d_table.dim(0), op.d_table.dim(1)};
  std::byte* const scratch = ScratchOf(op.scratch, layout.bytes(), "embed_grad");
  const auto piece = [&](int64_t offset) { return reinterpret_cast<int32_t*>(scratch + offset); };
  TokenSortArgs sort;
  sort.tokens = tokens;
  sort.rows = layout.rows;
  sort.vocab = layout.vocab;
  sort.passes = layout.passes();
  sort.digit_bits = layout.digit_bits();
  for (int i = 0; i < 2; ++i) {
    sort.keys[i] = piece(layout.keys(i));
    sort.order[i] = piece(layout.order(i));
  }
  sort.counts = piece(layout.counts());
  sort.begins = piece(layout.begins());
  LaunchTokenSort(sort, launch);

  TableGradArgs sums;
  const int result = (sort.passes - 1) % 2;
  sums.d_out = RowsOf(op.d_out, "d_out");
  sums.d_table = RowsOf(op.d_table, "d_table");
  sums.keys = sort.keys[result];
  sums.order = sort.order[result];
  sums.begins = sort.begins;
  sums.partials = reinterpret_cast<float*>(piece(layout.partials()));
  sums.rows = layout.rows;
  sums.vocab = layout.vocab;
  sums.columns = static_cast<int>(layout.columns);
  sums.accumulate = op.table_update == Update::kAccumulate;
  LaunchTableGrad(sums, launch);
}

}  // namespace

void CudaEmbedGrad(const EmbedGradOp<TensorView>& op, Stream& stream) {
  const TokenRows tokens = TokensOf(op.tokens, op.scalars, op.parity_stride);
  const int64_t rows = tokens.batch * tokens.length, columns = op.d_out.dim(1);
  MR_CHECK_EQ(op.d_out.dim(0), rows, "embed_grad: rows of d_out");
  MR_CHECK_LE(std::max(rows, columns), std::numeric_limits<int32_t>::max() - kPack,
              "embed_grad: rows or columns of d_out");
  const Launch launch = LaunchOn(stream);
  if (op.d_table) {
    MR_CHECK_EQ(op.d_table.dim(1), columns, "embed_grad: columns of d_table and d_out");
    TableGrad(op, tokens, launch);
  }
  if (op.d_positions) {
    PositionsGradArgs args;
    args.d_out = RowsOf(op.d_out, "d_out");
    args.d_positions = RowsOf(op.d_positions, tokens.length, columns, "d_positions");
    args.batch = tokens.batch;
    args.length = tokens.length;
    args.columns = static_cast<int>(columns);
    args.accumulate = op.positions_update == Update::kAccumulate;
    LaunchPositionsGrad(args, launch);
  }
}

}  // namespace millrace
