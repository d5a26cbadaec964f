#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/embed.h"
#include "kernels/cpu/expert_activation.h"
#include "kernels/cpu/expert_exchange.h"
#include "kernels/cpu/expert_rows.h"
#include "kernels/cpu/gated_norm.h"
#include "kernels/cpu/grouped_matmul.h"
#include "kernels/cpu/head_norm.h"
#include "kernels/cpu/mamba_conv.h"
#include "kernels/cpu/mamba_rows.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/muon.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/router_balance.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/ssd_scan.h"
#include "kernels/cpu/statistics.h"
#include "kernels/cpu/update.h"

namespace millrace {

const KernelTable& CpuKernels() {
#define MILLRACE_ENTRY(Name, entry) .entry = cpu::Name,
  static constexpr KernelTable kTable{MILLRACE_KERNEL_OPS(MILLRACE_ENTRY)};
#undef MILLRACE_ENTRY
  return kTable;
}

}  // namespace millrace
