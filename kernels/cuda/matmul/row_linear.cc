#include "kernels/cuda/matmul/row_linear.h"

#include <vector>

#include "kernels/cuda/matmul/in_order.h"
#include "kernels/cuda/matmul/one_row.h"
#include "kernels/cuda/matmul/row_chain.h"
#include "kernels/cuda/tickets.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cost.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// What the kernel reads in packs.
void CheckPacks(const RowLinearOp<TensorView>& op) {
  RowLinearOp<Shape> shape;
  static_cast<RowLinearAttrs&>(shape) = op;
  shape.x = {op.x.layout, true}, shape.weight = {op.weight.layout, true};
  const std::string why = WhyUnsupported(shape, Backend::kCuda);
  MR_CHECK(why.empty(), "{}", why);
  for (const TensorView* view :
       {&op.x, &op.residual, &op.sum, &op.norm_weight, &op.norm_bias, &op.weight, &op.bias})
    MR_CHECK(!*view || (view->dtype() == DType::kBF16 && view->layout.contiguous() &&
                        reinterpret_cast<uintptr_t>(view->data) % 16 == 0),
             "row_linear: {} at {}; dense bf16 at a multiple of 16 bytes is expected",
             ToString(view->layout), static_cast<const void*>(view->data));
}

void LaunchInOrder(const OneRowArgs& args, Stream& stream) {
  const cudaDeviceProp& device = AsCuda(stream).device().properties();
  MR_REQUIRE(ErrorCode::kDevice, HasInOrder(device.major, device.minor),
             "{} has no rows in order, which inference.exact=true takes; GPUs of compute "
             "capability 9.0 have, by a program built for sm_90a, or inference.exact=false",
             device.name);
  LaunchInOrderRow(args, LaunchOn(stream));
}

// Where the blocks of a chain meet, by its last result. Not those of others: these are not zero
// between two launches.
struct ChainWords : Tickets {
  using Tickets::Tickets;
};

// The first of these, as many as one chain may have.
std::vector<OneRowArgs> ChainOf(std::span<const RowLinearOp<TensorView>* const> ops) {
  std::vector<OneRowArgs> linears;
  for (const RowLinearOp<TensorView>* const op : ops) {
    if (op->in_order || linears.size() == kMostChain) break;
    const OneRowArgs args = OneRowArgsOf(*op);
    if (!FitsRowChain(args)) break;
    linears.push_back(args);
  }
  return linears;
}

}  // namespace

OneRowArgs cuda::OneRowArgsOf(const RowLinearOp<TensorView>& op) {
  CheckPacks(op);
  const int64_t depth = op.x.dim(1), columns = op.weight.dim(0);
  const bool halves = op.finish == RowFinish::kSwiglu, turns = op.finish == RowFinish::kRotate;
  MR_CHECK(op.x.dim(0) == 1 && op.weight.dim(1) == depth &&
               op.out.dim(1) == (halves ? columns / 2 : columns) && op.out.layout.contiguous(),
           "row_linear of {} by {} into {}", ToString(op.x.layout), ToString(op.weight.layout),
           ToString(op.out.layout));
  MR_CHECK_EQ(static_cast<bool>(op.residual), static_cast<bool>(op.sum),
              "row_linear: is there a residual, and a place for the sum");
  MR_CHECK(op.sum.data == nullptr || (op.sum.data != op.x.data && op.sum.data != op.residual.data),
           "row_linear: the sum is in place of what all blocks read");
  MR_CHECK(op.out.dtype() == DType::kBF16 ||
               (op.out.dtype() == DType::kF32 && op.finish == RowFinish::kNone),
           "row_linear: out is {}", ToString(op.out.layout));
  MR_CHECK(!op.in_order || reinterpret_cast<uintptr_t>(op.out.data) % 16 == 0,
           "row_linear in order: out at {}; a multiple of 16 bytes is expected",
           static_cast<const void*>(op.out.data));
  const auto halves_of = [](const Rows& rows) { return reinterpret_cast<uint16_t*>(rows.data); };
  OneRowArgs args;
  args.x = halves_of(RowsOf(op.x, "x"));
  args.residual = halves_of(RowsOf(op.residual, 1, depth, "residual"));
  args.sum = halves_of(RowsOf(op.sum, 1, depth, "sum"));
  if (op.norm != RowNorm::kNone) {
    args.norm_weight = halves_of(ColumnsOf(op.norm_weight, depth, "norm_weight"));
    args.norm_bias = halves_of(ColumnsOf(op.norm_bias, depth, "norm_bias"));
  }
  args.weight = halves_of(RowsOf(op.weight, "weight"));
  args.bias = halves_of(ColumnsOf(op.bias, columns, "bias"));
  args.out = op.out.data;
  args.out_f32 = op.out.dtype() == DType::kF32;
  args.units = static_cast<int>(halves || turns ? columns / 2 : columns);
  args.gap = static_cast<int>(halves ? columns / 2 : 0);
  if (turns) {
    const int64_t half = op.table.dim(1);
    MR_CHECK(half > 0 && columns % (2 * half) == 0 && op.turned * 2 * half <= columns,
             "row_linear: {} of {} columns in heads of {} are rotated", op.turned * 2 * half,
             columns, 2 * half);
    args.at = IntsOf(op.at, 1, "at");
    args.table = FloatsOf(op.table, op.table.numel(), "table");
    args.gap = static_cast<int>(half);
    args.turned = static_cast<int>(op.turned * half);
  }
  args.depth = static_cast<int>(depth);
  args.eps = op.eps;
  args.norm = op.norm;
  args.finish = op.finish;
  args.constant = op.constant;
  return args;
}

void CudaRowLinear(const RowLinearOp<TensorView>& op, Stream& stream) {
  const OneRowArgs args = OneRowArgsOf(op);
  if (args.units == 0 || args.depth == 0) return;
  if (op.in_order)
    LaunchInOrder(args, stream);
  else
    LaunchOneRow(args, LaunchOn(stream));
}

size_t CudaRowLinears(std::span<const RowLinearOp<TensorView>* const> ops,
                      std::span<const RowLinearOp<TensorView>* const> next, Stream& stream) {
  CudaDevice& device = AsCuda(stream).device();
  if (!HasRowChain(device.properties())) return 0;
  const std::vector<OneRowArgs> linears = ChainOf(ops);
  if (!GainsAsRowChain(linears)) return 0;
  std::vector<OneRowArgs> behind =
      ChainOf(linears.size() < ops.size() ? ops.subspan(linears.size()) : next);
  if (!GainsAsRowChain(behind)) behind.clear();
  LaunchRowChain(linears, behind, device.Attached<ChainWords>().Of(linears.back().out),
                 LaunchOn(stream));
  return linears.size();
}

}  // namespace millrace
