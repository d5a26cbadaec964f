#include "kernels/cuda/moe/grouped_matmul.h"

#include <limits>

#include "kernels/cuda/moe/grouped_launch.h"
#include "kernels/cuda/tickets.h"
#include "kernels/cuda/views.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

int Int(int64_t n, const char* what) {
  MR_CHECK(n >= 0 && n <= std::numeric_limits<int32_t>::max(), "grouped product: {} of {}", n,
           what);
  return static_cast<int>(n);
}

void CheckOperands(const TensorView& a, const TensorView& b) {
  MR_CHECK(a.dtype() == b.dtype() && (a.dtype() == DType::kF32 || a.dtype() == DType::kBF16),
           "grouped product: operands are {} and {}; both f32 or both bf16 are allowed",
           ToString(a.layout), ToString(b.layout));
}

// One stride is 1, and the others, the dim along it and the address are multiples of eight
// elements.
bool FitsTensorCores(const GroupedOperand& operand, int along_depth, int across) {
  if (operand.k != 1 && operand.mn != 1) return false;
  const int64_t line = operand.k == 1 ? operand.mn : operand.k,
                length = operand.k == 1 ? along_depth : across;
  return line % 8 == 0 && length % 8 == 0 && operand.expert % 8 == 0 &&
         reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
}

void SetOut(GroupedArgs& args, const TensorView& out, int64_t row, int64_t expert) {
  MR_CHECK(out.dtype() == DType::kF32 || out.dtype() == DType::kBF16, "grouped product: out is {}",
           ToString(out.layout));
  args.out = out.data;
  args.out_row = row;
  args.out_expert = expert;
  args.out_bf16 = out.dtype() == DType::kBF16;
}

bool FitsTensorCores(const GroupedArgs& args) {
  // Along the depth of slots rows end anywhere: both operands then have lines across.
  return FitsTensorCores(args.a, args.k, args.m) && FitsTensorCores(args.b, args.k, args.n) &&
         args.n % 8 == 0 && args.out_row % 8 == 0 && args.out_expert % 8 == 0 &&
         reinterpret_cast<uintptr_t>(args.out) % 16 == 0;
}

void RunWgmma(const GroupedArgs& args, Slots slots, int64_t rows, CudaStream& stream) {
  auto* const ticket =
      reinterpret_cast<unsigned*>(stream.device().Attached<Tickets>().Of(args.out));
  const Launch launch = LaunchOn(stream);
  if (slots == Slots::kDepth)
    LaunchGroupedWgmma<Slots::kDepth, true>(args, rows, ticket, launch);
  else if (args.b.k == 1)
    LaunchGroupedWgmma<Slots::kRows, false>(args, rows, ticket, launch);
  else
    LaunchGroupedWgmma<Slots::kRows, true>(args, rows, ticket, launch);
}

// rows: slots, live or not.
void Run(const GroupedArgs& args, Slots slots, int64_t rows, DType dtype, Stream& stream) {
  if (args.experts == 0 || args.n == 0 || (slots == Slots::kDepth && args.m == 0)) return;
  CudaStream& cuda = AsCuda(stream);
  const cudaDeviceProp& device = cuda.device().properties();
  const bool hopper = device.major == 9 && device.minor == 0 && HasGroupedWgmma();
  // Maps for copies have no dim of 0.
  const bool empty = rows == 0 || (slots == Slots::kRows && args.k == 0);
  if (dtype != DType::kBF16 || !FitsTensorCores(args))
    LaunchGroupedPlain(args, slots, dtype == DType::kBF16, LaunchOn(stream));
  else if (hopper && !empty)
    RunWgmma(args, slots, rows, cuda);
  else
    LaunchGroupedTensor(args, slots, LaunchOn(stream));
}

}  // namespace

void CudaGroupedMatmul(const GroupedMatmulOp<TensorView>& op, Stream& stream) {
  CheckOperands(op.a, op.b);
  const int64_t slots = op.a.dim(0), experts = op.b.dim(0);
  MR_CHECK(op.a.dim(1) == op.b.dim(1) && op.out.dim(0) == slots && op.out.dim(1) == op.b.dim(2) &&
               op.a.layout.contiguous() && op.out.layout.contiguous(),
           "grouped_matmul: {} by {} into {}", ToString(op.a.layout), ToString(op.b.layout),
           ToString(op.out.layout));
  GroupedArgs args;
  args.a = {op.a.data, op.a.stride(0), 1, 0};
  args.b = {op.b.data, op.b.stride(2), op.b.stride(1), op.b.stride(0)};
  SetOut(args, op.out, op.out.stride(0), 0);
  args.offsets = IntsOf(op.offsets, experts + 1, "offsets");
  args.experts = Int(experts, "experts");
  args.n = Int(op.out.dim(1), "columns");
  args.k = Int(op.a.dim(1), "depth");
  Int(slots, "slots");
  Run(args, Slots::kRows, slots, op.a.dtype(), stream);
}

void CudaGroupedWeightGrad(const GroupedWeightGradOp<TensorView>& op, Stream& stream) {
  CheckOperands(op.a, op.d_out);
  const int64_t slots = op.a.dim(0), experts = op.out.dim(0);
  MR_CHECK(op.d_out.dim(0) == slots && op.d_out.dim(1) == op.out.dim(1) &&
               op.a.dim(1) == op.out.dim(2) && op.a.layout.contiguous() &&
               op.d_out.layout.contiguous() && op.out.layout.contiguous(),
           "grouped_weight_grad: {} by {} into {}", ToString(op.d_out.layout),
           ToString(op.a.layout), ToString(op.out.layout));
  GroupedArgs args;
  args.a = {op.d_out.data, 1, op.d_out.stride(0), 0};
  args.b = {op.a.data, 1, op.a.stride(0), 0};
  SetOut(args, op.out, op.out.stride(1), op.out.stride(0));
  args.offsets = IntsOf(op.offsets, experts + 1, "offsets");
  args.experts = Int(experts, "experts");
  args.m = Int(op.out.dim(1), "rows");
  args.n = Int(op.out.dim(2), "columns");
  args.accumulate = op.update == Update::kAccumulate;
  Int(slots, "slots");
  Run(args, Slots::kDepth, slots, op.a.dtype(), stream);
}

}  // namespace millrace
