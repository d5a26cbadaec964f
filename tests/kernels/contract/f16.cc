#include "tests/kernels/contract/contract.h"

namespace millrace::test {

std::span<const F16Contract> F16Contracts() {
  static constexpr F16Contract kContracts[] = {
      {"embed", EmbedContract, true},
      {"embed_grad", EmbedGradContract, true},
      {"select_row", SelectRowContract, true},
      {"norm", NormContract, true},
      {"norm_grad", NormGradContract, true},
      {"norm_sums", NormSumsContract, true},
      {"head_norm", HeadNormContract, true},
      {"matmul", MatmulContract, true},
      {"matmul and GELU's derivative", MatmulGeluGradContract, true},
      {"matmul, rounded and added", MatmulUpdateContract, true},
      {"column_sum", ColumnSumContract, true},
      {"rope", RopeContract, true},
      {"attention", [](const Subject& subject) { AttentionContract(subject); }, true},
      {"attention_grad", [](const Subject& subject) { AttentionGradContract(subject); }, true},
      {"cached attention", CachedAttentionContract, false},
      {"rows of sequences with caches", CachedRowsContract, false},
      {"keep_range", KeepRangeContract, true},
      {"mamba_conv of rows", MambaConvRowsContract, false},
      {"ssd_scan of rows", SsdScanRowsContract, false},
      {"activation", ActivationContract, true},
      {"route", RouteContract, false},
      {"route_grad", RouteGradContract, false},
      {"dispatch and combine", DispatchContract, false},
      {"grouped_matmul", GroupedMatmulContract, false},
      {"grouped products alone", GroupedAloneContract, false},
      {"grouped_weight_grad", GroupedWeightGradContract, false},
      {"expert_activation", ExpertActivationContract, false},
      {"mamba_conv", MambaConvContract, false},
      {"mamba_conv_grad", MambaConvGradContract, false},
      {"ssd_scan", SsdScanContract, false},
      {"ssd_scan_grad", SsdScanGradContract, false},
      {"gated_norm", GatedNormContract, false},
      {"gated_norm_grad", GatedNormGradContract, false},
      {"cross_entropy", CrossEntropyContract, true},
      {"policy_loss", PolicyLossContract, true},
      {"elementwise", ElementwiseContract, true},
      {"finite_scan", FiniteScanContract, true},
      {"sum_squares", SumSquaresContract, true},
      {"adamw", AdamWContract, true},
      {"adamw by segments", AdamWSegmentsContract, true},
  };
  return kContracts;
}

}  // namespace millrace::test
