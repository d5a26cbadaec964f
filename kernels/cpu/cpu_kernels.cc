#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rope.h"
#include "kernels/cpu/cache/cache.h"
#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/embed/embed.h"
#include "kernels/cpu/loss/cross_entropy.h"
#include "kernels/cpu/mamba/gated_norm.h"
#include "kernels/cpu/mamba/mamba_conv.h"
#include "kernels/cpu/mamba/mamba_rows.h"
#include "kernels/cpu/mamba/ssd_scan.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/quantize.h"
#include "kernels/cpu/matmul/row_linear.h"
#include "kernels/cpu/matmul/shard_quantize.h"
#include "kernels/cpu/moe/expert_activation.h"
#include "kernels/cpu/moe/expert_exchange.h"
#include "kernels/cpu/moe/expert_rows.h"
#include "kernels/cpu/moe/grouped_matmul.h"
#include "kernels/cpu/moe/route.h"
#include "kernels/cpu/moe/router_balance.h"
#include "kernels/cpu/norm/head_norm.h"
#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/sample/sample.h"
#include "kernels/cpu/step/muon.h"
#include "kernels/cpu/step/statistics.h"
#include "kernels/cpu/step/update.h"

namespace millrace {

const KernelTable& CpuKernels() {
#define MILLRACE_ENTRY(Name, entry) .entry = cpu::Name,
  static constexpr KernelTable kTable{MILLRACE_KERNEL_OPS(MILLRACE_ENTRY).row_linears =
                                          cpu::RowLinears};
#undef MILLRACE_ENTRY
  return kTable;
}

}  // namespace millrace
