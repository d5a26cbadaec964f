#include "kernels/cuda/matmul/matmul.h"

#include <algorithm>

#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/matmul/few_rows.h"
#include "kernels/cuda/matmul/in_order.h"
#include "kernels/cuda/matmul/matmul_finish.h"
#include "kernels/cuda/matmul/matmul_plans.h"
#include "kernels/cuda/tickets.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/step_ops.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

bool HasBias(Epilogue e) { return e == Epilogue::kBias || e == Epilogue::kBiasGelu; }
bool HasGelu(Epilogue e) { return e == Epilogue::kGelu || e == Epilogue::kBiasGelu; }

void Check(const MatmulOp<TensorView>& op) {
  const bool scaled = op.scaling != Scaling::kNone;
  for (const TensorView* view : {&op.a, &op.b, &op.out}) {
    const bool float8 = scaled && view != &op.out;
    MR_CHECK(float8 ? IsFloat8(view->dtype())
                    : view->dtype() == DType::kF32 || IsFloatOf16Bits(view->dtype()),
             "matmul of {}", ToString(view->layout));
    MR_CHECK_EQ(view->layout.rank, 2, "matmul: rank of {}", ToString(view->layout));
  }
  MR_CHECK(scaled || op.a.dtype() == op.b.dtype(),
           "matmul of {} by {}: operands of one dtype are allowed", ToString(op.a.layout),
           ToString(op.b.layout));
  MR_CHECK(static_cast<bool>(op.a_scales) == scaled && static_cast<bool>(op.b_scales) == scaled,
           "matmul: scales of both operands, or of none");
  MR_CHECK(
      op.a.dim(1) == op.b.dim(0) && op.a.dim(0) == op.out.dim(0) && op.b.dim(1) == op.out.dim(1),
      "matmul of {} by {} into {}", ToString(op.a.layout), ToString(op.b.layout),
      ToString(op.out.layout));
  MR_CHECK_EQ(static_cast<bool>(op.bias), HasBias(op.epilogue),
              "matmul: is there a bias, and does the epilogue add one");
  if (op.bias) MR_CHECK_EQ(op.bias.dim(0), op.out.dim(1), "matmul: bias and columns of out");
  MR_CHECK(!op.rounds_once() || op.epilogue == Epilogue::kNone,
           "matmul that accumulates or rounds once takes no epilogue");
  MR_CHECK(op.pre || op.epilogue != Epilogue::kGeluGrad, "matmul: a GELU's gradient needs pre");
  MR_CHECK(!op.magnitude || HasGelu(op.epilogue) || op.epilogue == Epilogue::kGeluGrad,
           "matmul: a magnitude of what no GELU follows");
  if (op.pre)
    MR_CHECK(op.pre.dim(0) == op.out.dim(0) && op.pre.dim(1) == op.out.dim(1),
             "matmul: pre is {}, out is {}", ToString(op.pre.layout), ToString(op.out.layout));
}

// Rows [row, row + rows) and columns [col, col + cols) of a 2-D view.
TensorView Part(TensorView view, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  view.data += (row * view.stride(0) + col * view.stride(1)) * Bytes(view.dtype());
  view.layout.dims[0] = rows;
  view.layout.dims[1] = cols;
  return view;
}

cuda::MatmulFinish FinishOf(const MatmulOp<TensorView>& op, const TensorView& result) {
  cuda::MatmulFinish finish{.out = result.data,
                            .out_dtype = result.dtype(),
                            .row_stride = result.stride(0),
                            .col_stride = result.stride(1),
                            .rows = result.dim(0),
                            .cols = result.dim(1),
                            .accumulate = op.update == Update::kAccumulate};
  if (op.bias)
    finish.bias = op.bias.data, finish.bias_dtype = op.bias.dtype(),
    finish.bias_stride = op.bias.stride(0);
  return finish;
}

// The f32 part of scratch, behind the library's workspace.
TensorView ProductIn(const TensorView& scratch, int64_t rows, int64_t cols) {
  const TensorView product{scratch.data + kMatmulWorkspaceBytes,
                           DenseLayout(DType::kF32, {rows, cols})};
  MR_CHECK_GE(scratch ? scratch.bytes() : 0, kMatmulWorkspaceBytes + product.bytes(),
              "scratch is smaller than WorkspaceBytes of the matmul");
  return product;
}

TensorView WorkspaceIn(TensorView scratch) {
  scratch.layout = DenseLayout(DType::kU8, {kMatmulWorkspaceBytes});
  return scratch;
}

// The product as a dense f32 result would have it; then the kernel that would
// add such a temporary later.
void ThroughWhole(const MatmulOp<TensorView>& op, const TensorView& result, MatmulPlans& plans,
                  Stream& stream) {
  const TensorView product = ProductIn(op.scratch, result.dim(0), result.dim(1));
  plans.Run({op.a, op.b, product, op.a_scales, op.b_scales, op.scaling}, {}, Update::kOverwrite,
            WorkspaceIn(op.scratch), AsCuda(stream).get());
  if (!op.bias && op.out.layout.contiguous()) {
    ConcatOp<TensorView> concat;
    concat.x = product;
    concat.out = op.out;
    concat.update = op.update;
    CudaConcat(concat, stream);
    return;
  }
  cuda::MatmulFinish finish = FinishOf(op, result);
  finish.product = product.as<float>();
  cuda::LaunchMatmulFinish(finish, cuda::LaunchOn(stream));
}

// Products of all columns of b by as many rows of a as a tile holds; fewer columns only when eight
// rows of them exceed a tile.
void ThroughTiles(const MatmulOp<TensorView>& op, const TensorView& result, MatmulPlans& plans,
                  Stream& stream) {
  const int64_t m = result.dim(0), n = result.dim(1), k = op.a.dim(1),
                floats = kMatmulTileBytes / 4;
  // Tiles begin at multiples of 8 elements, so that parts of a and b stay aligned to 16 bytes.
  const int64_t cols = std::min(n, floats / 8);
  const int64_t rows = std::min(m, floats / cols / 8 * 8);
  for (int64_t col = 0; col < n; col += cols)
    for (int64_t row = 0; row < m; row += rows) {
      const int64_t r = std::min(rows, m - row), c = std::min(cols, n - col);
      const TensorView tile = ProductIn(op.scratch, r, c);
      plans.Run({Part(op.a, row, r, 0, k), Part(op.b, 0, k, col, c), tile}, {}, Update::kOverwrite,
                WorkspaceIn(op.scratch), AsCuda(stream).get());
      cuda::MatmulFinish finish = FinishOf(op, Part(result, row, r, col, c));
      finish.product = tile.as<float>();
      if (finish.bias != nullptr)
        finish.bias += col * finish.bias_stride * Bytes(finish.bias_dtype);
      cuda::LaunchMatmulFinish(finish, cuda::LaunchOn(stream));
    }
}

// Whether every line begins at a multiple of 16 bytes and its elements are neighbours.
bool HasWideLines(const TensorView& view) {
  return view.stride(1) == 1 && view.stride(0) % cuda::kPack == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

cuda::FewRowsArgs FewRowsOf(const MatmulOp<TensorView>& op) {
  cuda::FewRowsArgs args;
  args.a = cuda::RowsOf(op.a, "a");
  args.b = cuda::RowsOf(TransposedView(op.b), "b");
  args.bias = cuda::ColumnsOf(op.bias, op.out.dim(1), "bias");
  args.rows = static_cast<int>(op.a.dim(0));
  args.columns = static_cast<int>(op.out.dim(1));
  args.depth = static_cast<int>(op.a.dim(1));
  return args;
}

// Runs LaunchFewRows, where it can. Not into f32: such a product has the bits that are added
// elsewhere.
bool RunWithFewRows(const MatmulOp<TensorView>& op, Stream& stream) {
  if (op.a.dim(0) > cuda::kFewRows || op.a.dim(1) % cuda::kPack != 0 || op.rounds_once() ||
      op.epilogue == Epilogue::kGeluGrad || op.a.dtype() != DType::kBF16 ||
      op.b.dtype() != DType::kBF16 || ResultOf(op).dtype() != DType::kBF16 || !HasWideLines(op.a) ||
      !HasWideLines(TransposedView(op.b)) || op.out.stride(1) != 1 ||
      (op.pre && op.pre.stride(1) != 1))
    return false;
  cuda::FewRowsArgs args = FewRowsOf(op);
  args.pre = cuda::RowsOf(op.pre, "pre");
  args.out = cuda::RowsOf(op.out, "out");
  args.gelu = HasGelu(op.epilogue);
  cuda::LaunchFewRows(args, cuda::LaunchOn(stream));
  return true;
}

enum class Done { kNothing, kProduct, kAll };

// Runs LaunchSplitRows, where it can, which operands and result alone decide: what is behind the
// product changes no bit of it.
Done RunWithSplitRows(const MatmulOp<TensorView>& op, CudaStream& stream) {
  const cudaDeviceProp& device = stream.device().properties();
  const cuda::Launch launch = cuda::LaunchOn(stream);
  const TensorView& result = ResultOf(op);
  const auto fits = [](const TensorView& view) {
    return view.dtype() == DType::kBF16 && HasWideLines(view);
  };
  const bool fits_bias = !op.bias || (op.bias.dtype() == DType::kBF16 && op.bias.stride(0) == 1 &&
                                      reinterpret_cast<uintptr_t>(op.bias.data) % 16 == 0);
  if (op.a.dim(0) <= cuda::kFewRows || op.rounds_once() || !fits(op.a) ||
      !fits(TransposedView(op.b)) || !fits(result) || !fits_bias ||
      !cuda::HasInOrder(device.major, device.minor) ||
      !cuda::SplitsRows(op.a.dim(0), op.out.dim(1), op.a.dim(1), launch.sms))
    return Done::kNothing;
  cuda::FewRowsArgs args = FewRowsOf(op);
  args.gelu = HasGelu(op.epilogue) && !op.magnitude && fits(op.out);
  if (args.gelu) args.pre = cuda::RowsOf(op.pre, "pre");
  args.out = cuda::RowsOf(args.gelu ? op.out : result, "out");
  cuda::LaunchSplitRows(args, launch);
  return args.gelu || op.epilogue == Epilogue::kNone || op.epilogue == Epilogue::kBias
             ? Done::kAll
             : Done::kProduct;
}

// True: with the gradient of a GELU behind it.
bool RunWithPlans(const MatmulOp<TensorView>& op, CudaStream& stream) {
  const TensorView& result = ResultOf(op);
  MatmulPlans& plans = stream.device().Attached<MatmulPlans>();
  // A magnitude is formed by the kernel behind the product.
  if (!op.magnitude && op.epilogue == Epilogue::kGeluGrad &&
      plans.RunWithGeluGrad(op, stream.get()))
    return true;
  switch (RouteOf(op)) {
    case MatmulRoute::kOneLaunch:
      plans.Run(Product<TensorView>::Of(op, result), op.bias, op.update, op.scratch, stream.get());
      break;
    case MatmulRoute::kWhole:
      ThroughWhole(op, result, plans, stream);
      break;
    case MatmulRoute::kTiles:
      ThroughTiles(op, result, plans, stream);
      break;
  }
  return false;
}

// The product and its bias in order; true: the GELU, too.
bool RunInOrder(const MatmulOp<TensorView>& op, CudaStream& stream) {
  const cudaDeviceProp& device = stream.device().properties();
  MR_REQUIRE(ErrorCode::kDevice, cuda::HasInOrder(device.major, device.minor),
             "{} has no products in order, which inference.exact=true takes; GPUs of compute "
             "capability 9.0 have, by a program built for sm_90a, or inference.exact=false",
             device.name);
  const TensorView& result = ResultOf(op);
  const TensorView columns = TransposedView(op.b);
  MR_CHECK(HasWideLines(op.a) && HasWideLines(columns) && HasWideLines(op.out) &&
               (!op.pre || HasWideLines(op.pre)) &&
               (!op.bias || reinterpret_cast<uintptr_t>(op.bias.data) % 16 == 0),
           "matmul in order of {} by {} into {}: lines at multiples of 16 bytes are expected",
           ToString(op.a.layout), ToString(op.b.layout), ToString(op.out.layout));
  cuda::InOrderArgs args;
  args.a = cuda::RowsOf(op.a, "a");
  args.b = cuda::RowsOf(columns, "b");
  args.bias = cuda::ColumnsOf(op.bias, op.out.dim(1), "bias");
  args.rows = static_cast<int>(op.a.dim(0));
  args.columns = static_cast<int>(op.out.dim(1));
  args.depth = static_cast<int>(op.a.dim(1));
  if (args.rows > cuda::kInOrderRows) {
    args.out = cuda::RowsOf(result, "out");
    auto* const ticket =
        reinterpret_cast<unsigned*>(stream.device().Attached<cuda::Tickets>().Of(result.data));
    cuda::LaunchInOrderTiles(args, ticket, cuda::LaunchOn(stream));
    return false;
  }
  args.out = cuda::RowsOf(op.out, "out");
  args.pre = cuda::RowsOf(op.pre, "pre");
  args.gelu = HasGelu(op.epilogue);
  args.constant = op.constant;
  cuda::LaunchInOrderRows(args, cuda::LaunchOn(stream));
  return true;
}

}  // namespace

void CudaMatmul(const MatmulOp<TensorView>& op, Stream& stream) {
  Check(op);
  if (op.out.numel() == 0) return;
  CudaStream& queue = AsCuda(stream);
  const TensorView& result = ResultOf(op);
  if (op.a.dim(1) == 0) {
    cuda::LaunchMatmulFinish(FinishOf(op, result), cuda::LaunchOn(stream));
  } else if (op.in_order) {
    if (RunInOrder(op, queue)) return;
  } else {
    if (!op.magnitude && RunWithFewRows(op, stream)) return;
    const Done done = RunWithSplitRows(op, queue);
    if (done == Done::kAll || (done == Done::kNothing && RunWithPlans(op, queue))) return;
  }
  if (HasGelu(op.epilogue)) {  // in place where nobody wants the value before it
    ActivationOp<TensorView> activation;
    activation.kind = ActivationKind::kGelu;
    activation.x = result;
    activation.out = op.out;
    activation.magnitude = op.magnitude;
    CudaActivation(activation, stream);
  } else if (op.epilogue == Epilogue::kGeluGrad) {
    ActivationGradOp<TensorView> grad;
    grad.kind = ActivationKind::kGelu;
    grad.x = op.pre;
    grad.d_out = grad.d_x = op.out;
    grad.magnitude = op.magnitude;
    CudaActivationGrad(grad, stream);
  }
}

void CudaBatchedMatmul(const BatchedMatmulOp<TensorView>& op, Stream& stream) {
  for (const TensorView* view : {&op.a, &op.b, &op.out})
    MR_CHECK_EQ(view->layout.rank, 3, "batched matmul: rank of {}", ToString(view->layout));
  MR_CHECK(op.a.dim(0) == op.out.dim(0) && op.b.dim(0) == op.out.dim(0) &&
               op.a.dim(1) == op.out.dim(1) && op.b.dim(2) == op.out.dim(2) &&
               op.a.dim(2) == op.b.dim(1),
           "batched matmul of {} by {} into {}", ToString(op.a.layout), ToString(op.b.layout),
           ToString(op.out.layout));
  MR_CHECK((op.a.dtype() == DType::kF32 || op.a.dtype() == DType::kBF16) &&
               op.b.dtype() == op.a.dtype() &&
               (op.out.dtype() == op.a.dtype() || op.out.dtype() == DType::kF32),
           "batched matmul of {} by {} into {}: f32 or bf16, into f32 or the same, is allowed",
           ToString(op.a.layout), ToString(op.b.layout), ToString(op.out.layout));
  MR_CHECK(op.out.dim(2) <= 1 || op.out.stride(2) == 1, "batched matmul: out is {}",
           ToString(op.out.layout));
  MR_CHECK(op.c ? op.c.layout == op.out.layout : op.alpha == 1 && op.beta == 0,
           "batched matmul: c is {}, out is {}, alpha {}, beta {}", ToString(op.c.layout),
           ToString(op.out.layout), op.alpha, op.beta);
  MR_CHECK(op.a.numel() > 0 && op.b.numel() > 0, "batched matmul of {} by {}: nothing to multiply",
           ToString(op.a.layout), ToString(op.b.layout));
  CudaStream& queue = AsCuda(stream);
  queue.device().Attached<MatmulPlans>().Run(op, queue.get());
}

}  // namespace millrace
