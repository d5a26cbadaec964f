#include "kernels/cuda/cuda_kernels.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/rope.h"
#include "kernels/cuda/cache/cache.h"
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/embed/embed_grad.h"
#include "kernels/cuda/loss/cross_entropy.h"
#include "kernels/cuda/mamba/mamba.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/matmul/quantize.h"
#include "kernels/cuda/matmul/row_linear.h"
#include "kernels/cuda/matmul/shard_quantize.h"
#include "kernels/cuda/moe/expert_activation.h"
#include "kernels/cuda/moe/expert_exchange.h"
#include "kernels/cuda/moe/expert_rows.h"
#include "kernels/cuda/moe/grouped_matmul.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/moe/router_bias.h"
#include "kernels/cuda/norm/head_norm.h"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/sample/sample.h"
#include "kernels/cuda/step/muon.h"
#include "kernels/cuda/step/statistics.h"
#include "kernels/cuda/step/update.h"

namespace millrace {

const KernelTable& CudaKernels() {
#define MILLRACE_ENTRY(Name, entry) .entry = Cuda##Name,
  static constexpr KernelTable kTable{MILLRACE_KERNEL_OPS(MILLRACE_ENTRY).row_linears =
                                          CudaRowLinears};
#undef MILLRACE_ENTRY
  return kTable;
}

}  // namespace millrace
