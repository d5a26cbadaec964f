#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/embed.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/statistics.h"
#include "kernels/cpu/update.h"

namespace millrace {

const KernelTable& CpuKernels() {
  static constexpr KernelTable kTable{
      .embed = cpu::Embed,
      .embed_grad = cpu::EmbedGrad,
      .norm = cpu::Norm,
      .norm_grad = cpu::NormGrad,
      .matmul = cpu::Matmul,
      .column_sum = cpu::ColumnSum,
      .rope_table = cpu::RopeTable,
      .rope = cpu::Rope,
      .attention = cpu::Attention,
      .attention_grad = cpu::AttentionGrad,
      .add = cpu::Add,
      .activation = cpu::Activation,
      .activation_grad = cpu::ActivationGrad,
      .cross_entropy = cpu::CrossEntropy,
      .select_row = cpu::SelectRow,
      .cast = cpu::Cast,
      .concat = cpu::Concat,
      .accumulate = cpu::Accumulate,
      .zero_ranges = cpu::ZeroRanges,
      .finite_scan = cpu::FiniteScan,
      .sum_squares = cpu::SumSquares,
      .begin_step = cpu::BeginStep,
      .step_stats = cpu::StepStats,
      .adamw = cpu::AdamW,
  };
  return kTable;
}

}  // namespace millrace
