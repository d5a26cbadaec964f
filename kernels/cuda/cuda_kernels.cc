#include "kernels/cuda/cuda_kernels.h"

#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/embed_grad.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/statistics.h"
#include "kernels/cuda/update.h"

namespace millrace {

const KernelTable& CudaKernels() {
  static constexpr KernelTable kTable{
      .embed = CudaEmbed,
      .embed_grad = CudaEmbedGrad,
      .norm = CudaNorm,
      .norm_grad = CudaNormGrad,
      .matmul = CudaMatmul,
      .column_sum = CudaColumnSum,
      .rope_table = CudaRopeTable,
      .rope = CudaRope,
      .attention = CudaAttention,
      .attention_grad = CudaAttentionGrad,
      .add = CudaAdd,
      .activation = CudaActivation,
      .activation_grad = CudaActivationGrad,
      .cross_entropy = CudaCrossEntropy,
      .select_row = CudaSelectRow,
      .cast = CudaCast,
      .concat = CudaConcat,
      .accumulate = CudaAccumulate,
      .zero_ranges = CudaZeroRanges,
      .finite_scan = CudaFiniteScan,
      .sum_squares = CudaSumSquares,
      .begin_step = CudaBeginStep,
      .step_stats = CudaStepStats,
      .adamw = CudaAdamW,
  };
  return kTable;
}

}  // namespace millrace
