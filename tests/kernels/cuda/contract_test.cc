// The CUDA backend against the contract of the kernel table. The tests of products, attention and
// large rows beside this one reach what the contract's small shapes do not.
#include "tests/kernels/contract/contract.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/in_order.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace::test {
namespace {

struct Gpu {
  CudaDevice device{0};
  std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  Subject subject{CudaKernels(), device, *stream, Backend::kCuda, 256};
};

TEST_CASE("the CUDA table has every entry") {
  const KernelTable& table = CudaKernels();
  static_assert(sizeof(KernelTable) % sizeof(void (*)()) == 0);
  const auto* bytes = reinterpret_cast<const std::byte*>(&table);
  for (size_t at = 0; at < sizeof(KernelTable); at += sizeof(void (*)())) {
    void (*entry)() = nullptr;
    std::memcpy(&entry, bytes + at, sizeof entry);
    INFO("entry " << at / sizeof entry);
    CHECK(entry != nullptr);
  }
}

TEST_CASE("take_input") { TakeInputContract(Gpu().subject); }
TEST_CASE("embed") { EmbedContract(Gpu().subject); }
TEST_CASE("embed_grad") { EmbedGradContract(Gpu().subject); }
TEST_CASE("select_row") { SelectRowContract(Gpu().subject); }
TEST_CASE("sample") { SampleContract(Gpu().subject); }
TEST_CASE("sample draws by the probabilities") { SampleFrequencies(Gpu().subject); }
TEST_CASE("norm") { NormContract(Gpu().subject); }
TEST_CASE("norm_grad") { NormGradContract(Gpu().subject); }
TEST_CASE("norm_sums") { NormSumsContract(Gpu().subject); }
TEST_CASE("row_linear") { RowLinearContract(Gpu().subject); }
TEST_CASE("row_linear in order") {
  Gpu gpu;
  const cudaDeviceProp& properties = gpu.device.properties();
  if (!cuda::HasInOrder(properties.major, properties.minor)) {
    WARN("not run: this GPU has no rows in order, or the program is not built for it");
    return;
  }
  RowLinearContract(gpu.subject, true);
}
TEST_CASE("head_norm") { HeadNormContract(Gpu().subject); }
TEST_CASE("matmul") { MatmulContract(Gpu().subject); }
TEST_CASE("matmul multiplies by the derivative of GELU") { MatmulGeluGradContract(Gpu().subject); }
TEST_CASE("matmul rounds and adds the complete product") { MatmulUpdateContract(Gpu().subject); }
TEST_CASE("batched_matmul") { BatchedMatmulContract(Gpu().subject); }
TEST_CASE("quantize") { QuantizeContract(Gpu().subject); }
TEST_CASE("turn") { TurnContract(Gpu().subject); }
TEST_CASE("flat encoding") { FlatEncodingContract(Gpu().subject); }
TEST_CASE("matmul of FP8") { Float8MatmulContract(Gpu().subject); }
TEST_CASE("magnitudes, and quantize by them") { MagnitudeContract(Gpu().subject); }
TEST_CASE("column_sum") { ColumnSumContract(Gpu().subject); }
TEST_CASE("rope_table and rope") { RopeContract(Gpu().subject); }
TEST_CASE("cached attention") { CachedAttentionContract(Gpu().subject); }
TEST_CASE("what a rank keeps of a flat in strips") { KeepRangeContract(Gpu().subject); }
TEST_CASE("rows of sequences with caches") { CachedRowsContract(Gpu().subject); }
TEST_CASE("mamba_conv of rows") { MambaConvRowsContract(Gpu().subject); }
TEST_CASE("ssd_scan of rows") { SsdScanRowsContract(Gpu().subject); }
TEST_CASE("attention") { AttentionContract(Gpu().subject); }
TEST_CASE("attention_grad") { AttentionGradContract(Gpu().subject); }
TEST_CASE("activation and activation_grad") { ActivationContract(Gpu().subject); }
TEST_CASE("route") { RouteContract(Gpu().subject); }
TEST_CASE("route_grad") { RouteGradContract(Gpu().subject); }
TEST_CASE("router_stats and router_balance") { RouterBalanceContract(Gpu().subject); }
TEST_CASE("expert_load") { ExpertLoadContract(Gpu().subject); }
TEST_CASE("router_bias") { RouterBiasContract(Gpu().subject); }
TEST_CASE("expert_slots") { ExpertSlotsContract(Gpu().subject); }
TEST_CASE("dispatch and combine") { DispatchContract(Gpu().subject); }
TEST_CASE("expert pieces") { ExpertPiecesContract(Gpu().subject); }
TEST_CASE("received slots") { ReceivedSlotsContract(Gpu().subject); }
TEST_CASE("grouped_matmul") { GroupedMatmulContract(Gpu().subject); }
TEST_CASE("grouped products of an expert have the bits that they have alone") {
  GroupedAloneContract(Gpu().subject);
}
TEST_CASE("grouped_weight_grad") { GroupedWeightGradContract(Gpu().subject); }
TEST_CASE("expert_activation and its gradient") { ExpertActivationContract(Gpu().subject); }
TEST_CASE("mamba_conv") { MambaConvContract(Gpu().subject); }
TEST_CASE("mamba_conv_grad") { MambaConvGradContract(Gpu().subject); }
TEST_CASE("ssd_scan") { SsdScanContract(Gpu().subject); }
TEST_CASE("ssd_scan_grad") { SsdScanGradContract(Gpu().subject); }
TEST_CASE("gated_norm") { GatedNormContract(Gpu().subject); }
TEST_CASE("gated_norm_grad") { GatedNormGradContract(Gpu().subject); }
TEST_CASE("cross_entropy") { CrossEntropyContract(Gpu().subject); }
TEST_CASE("cross_entropy, weighted and as a policy gradient") { PolicyLossContract(Gpu().subject); }
TEST_CASE("add, join_columns, copy_rows, cast, concat, accumulate, zero_ranges") {
  ElementwiseContract(Gpu().subject);
}
TEST_CASE("finite_scan") { FiniteScanContract(Gpu().subject); }
TEST_CASE("sum_squares") { SumSquaresContract(Gpu().subject); }
TEST_CASE("step_stats") { StepStatsContract(Gpu().subject); }
TEST_CASE("begin_step") { BeginStepContract(Gpu().subject); }
TEST_CASE("adamw") { AdamWContract(Gpu().subject); }
TEST_CASE("adamw by segments") { AdamWSegmentsContract(Gpu().subject); }
TEST_CASE("muon_momentum") { MuonMomentumContract(Gpu().subject); }
TEST_CASE("muon_normalise") { MuonNormaliseContract(Gpu().subject); }
TEST_CASE("muon_update") { MuonUpdateContract(Gpu().subject); }

TEST_CASE("in f16, too: ", "[f16]") {
  const F16ForBF16 in_f16;
  for (const F16Contract& each : F16Contracts())
    if (each.on_gpus) DYNAMIC_SECTION(each.name) {
        each.contract(Gpu().subject);
      }
}

}  // namespace
}  // namespace millrace::test
