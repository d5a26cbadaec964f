// The CPU backend against the contract of the kernel table.
#include "tests/kernels/contract/contract.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"

namespace millrace::test {
namespace {

struct Cpu {
  std::unique_ptr<Device> device = MakeHostDevice();
  std::unique_ptr<Stream> stream = device->MakeStream(StreamRole::kCompute);
  Subject subject{CpuKernels(), *device, *stream, Backend::kCpu};
};

TEST_CASE("the CPU table has every entry") {
  const KernelTable& table = CpuKernels();
  static_assert(sizeof(KernelTable) % sizeof(void (*)()) == 0);
  const auto* bytes = reinterpret_cast<const std::byte*>(&table);
  for (size_t at = 0; at < sizeof(KernelTable); at += sizeof(void (*)())) {
    void (*entry)() = nullptr;
    std::memcpy(&entry, bytes + at, sizeof entry);
    INFO("entry " << at / sizeof entry);
    CHECK(entry != nullptr);
  }
}

TEST_CASE("take_input") { TakeInputContract(Cpu().subject); }
TEST_CASE("embed") { EmbedContract(Cpu().subject); }
TEST_CASE("embed_grad") { EmbedGradContract(Cpu().subject); }
TEST_CASE("select_row") { SelectRowContract(Cpu().subject); }
TEST_CASE("sample") { SampleContract(Cpu().subject); }
TEST_CASE("sample draws by the probabilities") { SampleFrequencies(Cpu().subject); }
TEST_CASE("norm") { NormContract(Cpu().subject); }
TEST_CASE("norm_grad") { NormGradContract(Cpu().subject); }
TEST_CASE("norm_sums") { NormSumsContract(Cpu().subject); }
TEST_CASE("row_linear") { RowLinearContract(Cpu().subject); }
TEST_CASE("head_norm") { HeadNormContract(Cpu().subject); }
TEST_CASE("matmul") { MatmulContract(Cpu().subject); }
TEST_CASE("matmul multiplies by the derivative of GELU") { MatmulGeluGradContract(Cpu().subject); }
TEST_CASE("matmul rounds and adds the complete product") { MatmulUpdateContract(Cpu().subject); }
TEST_CASE("batched_matmul") { BatchedMatmulContract(Cpu().subject); }
TEST_CASE("quantize") { QuantizeContract(Cpu().subject); }
TEST_CASE("turn") { TurnContract(Cpu().subject); }
TEST_CASE("flat encoding") { FlatEncodingContract(Cpu().subject); }
TEST_CASE("matmul of FP8") { Float8MatmulContract(Cpu().subject); }
TEST_CASE("matmul of FP8 of any shape") { Float8AnyMatmulContract(Cpu().subject); }
TEST_CASE("magnitudes, and quantize by them") { MagnitudeContract(Cpu().subject); }
TEST_CASE("column_sum") { ColumnSumContract(Cpu().subject); }
TEST_CASE("rope_table and rope") { RopeContract(Cpu().subject); }
TEST_CASE("attention") { AttentionContract(Cpu().subject); }
TEST_CASE("attention_grad") { AttentionGradContract(Cpu().subject); }
TEST_CASE("cached attention") { CachedAttentionContract(Cpu().subject); }
TEST_CASE("what a rank keeps of a flat in strips") { KeepRangeContract(Cpu().subject); }
TEST_CASE("rows of sequences with caches") { CachedRowsContract(Cpu().subject); }
TEST_CASE("mamba_conv of rows") { MambaConvRowsContract(Cpu().subject); }
TEST_CASE("ssd_scan of rows") { SsdScanRowsContract(Cpu().subject); }
TEST_CASE("activation and activation_grad") { ActivationContract(Cpu().subject); }
TEST_CASE("route") { RouteContract(Cpu().subject); }
TEST_CASE("route_grad") { RouteGradContract(Cpu().subject); }
TEST_CASE("router_stats and router_balance") { RouterBalanceContract(Cpu().subject); }
TEST_CASE("expert_load") { ExpertLoadContract(Cpu().subject); }
TEST_CASE("router_bias") { RouterBiasContract(Cpu().subject); }
TEST_CASE("expert_slots") { ExpertSlotsContract(Cpu().subject); }
TEST_CASE("dispatch and combine") { DispatchContract(Cpu().subject); }
TEST_CASE("expert pieces") { ExpertPiecesContract(Cpu().subject); }
TEST_CASE("received slots") { ReceivedSlotsContract(Cpu().subject); }
TEST_CASE("grouped_matmul") { GroupedMatmulContract(Cpu().subject); }
TEST_CASE("grouped products of an expert have the bits that they have alone") {
  GroupedAloneContract(Cpu().subject);
}
TEST_CASE("grouped_weight_grad") { GroupedWeightGradContract(Cpu().subject); }
TEST_CASE("expert_activation and its gradient") { ExpertActivationContract(Cpu().subject); }
TEST_CASE("the recurrence of a scan, by finite differences") { SsdReferenceContract(); }
TEST_CASE("mamba_conv") { MambaConvContract(Cpu().subject); }
TEST_CASE("mamba_conv_grad") { MambaConvGradContract(Cpu().subject); }
TEST_CASE("ssd_scan") { SsdScanContract(Cpu().subject); }
TEST_CASE("ssd_scan_grad") { SsdScanGradContract(Cpu().subject); }
TEST_CASE("gated_norm") { GatedNormContract(Cpu().subject); }
TEST_CASE("gated_norm_grad") { GatedNormGradContract(Cpu().subject); }
TEST_CASE("cross_entropy") { CrossEntropyContract(Cpu().subject); }
TEST_CASE("cross_entropy, weighted and as a policy gradient") { PolicyLossContract(Cpu().subject); }
TEST_CASE("add, join_columns, copy_rows, cast, concat, accumulate, zero_ranges") {
  ElementwiseContract(Cpu().subject);
}
TEST_CASE("finite_scan") { FiniteScanContract(Cpu().subject); }
TEST_CASE("sum_squares") { SumSquaresContract(Cpu().subject); }
TEST_CASE("step_stats") { StepStatsContract(Cpu().subject); }
TEST_CASE("begin_step") { BeginStepContract(Cpu().subject); }
TEST_CASE("adamw") { AdamWContract(Cpu().subject); }
TEST_CASE("adamw by segments") { AdamWSegmentsContract(Cpu().subject); }
TEST_CASE("muon_momentum") { MuonMomentumContract(Cpu().subject); }
TEST_CASE("muon_normalise") { MuonNormaliseContract(Cpu().subject); }
TEST_CASE("muon_update") { MuonUpdateContract(Cpu().subject); }

TEST_CASE("in f16, too: ", "[f16]") {
  const F16ForBF16 in_f16;
  for (const F16Contract& each : F16Contracts()) DYNAMIC_SECTION(each.name) {
      each.contract(Cpu().subject);
    }
}

}  // namespace
}  // namespace millrace::test
