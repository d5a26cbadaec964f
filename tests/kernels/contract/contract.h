// The contract of the kernel table (kernels/ops/*.h), as Catch2 checks that every backend must
// pass: each function tests one or a few entries against an independent double-precision reference
// over random shapes, strides, dtypes, updates and in-place uses. Call each inside a TEST_CASE of
// the backend. Every call of an op goes through Run (tests/kernels/support/subject.h), which adds
// the checks that hold for all ops.
#pragma once

#include <optional>
#include <span>

#include "kernels/ops/attention_choice.h"
#include "tests/kernels/support/subject.h"

namespace millrace::test {

// Views of an op in the order of its operands, for a sweep: sizes 0 and 1, primes, powers of two
// and one past, and past a block.
inline constexpr int64_t kSizes[] = {1, 2, 3, 5, 7, 8, 13, 16, 31, 33, 64, 65};

int64_t PickSize(Random& random);
Strides PickRowStrides(Random& random);  // dense or padded
Update PickUpdate(Random& random);

StepScalars MakeScalars();  // plausible values, no fault injection

void TakeInputContract(const Subject& subject);
void EmbedContract(const Subject& subject);
void EmbedGradContract(const Subject& subject);
void SelectRowContract(const Subject& subject);
void SampleContract(const Subject& subject);
// Whether draws have the probabilities that they should.
void SampleFrequencies(const Subject& subject);
void NormContract(const Subject& subject);
void NormGradContract(const Subject& subject);
void NormSumsContract(const Subject& subject);
void HeadNormContract(const Subject& subject);
void MatmulContract(const Subject& subject);
void MatmulUpdateContract(const Subject& subject);
void BatchedMatmulContract(const Subject& subject);
void MatmulGeluGradContract(const Subject& subject);
void QuantizeContract(const Subject& subject);
void TurnContract(const Subject& subject);
void FlatEncodingContract(const Subject& subject);
void Float8MatmulContract(const Subject& subject);  // of shapes and strides that GPUs have, too
void Float8AnyMatmulContract(const Subject& subject);
void MagnitudeContract(const Subject& subject);
void ColumnSumContract(const Subject& subject);
void RopeContract(const Subject& subject);
// `only`: the CUDA implementation that the table's attention entries are; else they are the
// chosen one of each case. It decides which cases there are, and the bounds:
// attention_choice.h says what cuDNN rounds.
void AttentionContract(const Subject& subject, std::optional<cuda::AttentionKernel> only = {});
void AttentionGradContract(const Subject& subject, std::optional<cuda::AttentionKernel> only = {});
void CachedAttentionContract(const Subject& subject);
void CachedRowsContract(const Subject& subject);
void KeepRangeContract(const Subject& subject);
void MambaConvRowsContract(const Subject& subject);
void SsdScanRowsContract(const Subject& subject);
void ActivationContract(const Subject& subject);
// in_order: of ops that are, as GPUs that have them take them.
void RowLinearContract(const Subject& subject, bool in_order = false);
void RouteContract(const Subject& subject);
void RouteGradContract(const Subject& subject);
void RouterBalanceContract(const Subject& subject);
void ExpertLoadContract(const Subject& subject);
void RouterBiasContract(const Subject& subject);
void ExpertSlotsContract(const Subject& subject);
void DispatchContract(const Subject& subject);
void ExpertPiecesContract(const Subject& subject);
void ReceivedSlotsContract(const Subject& subject);
void GroupedMatmulContract(const Subject& subject);
void GroupedWeightGradContract(const Subject& subject);
void GroupedAloneContract(const Subject& subject);
void ExpertActivationContract(const Subject& subject);
void MambaConvContract(const Subject& subject);
void MambaConvGradContract(const Subject& subject);
// Of the recurrence that the entries are held against: its gradients against finite differences.
void SsdReferenceContract();
void SsdScanContract(const Subject& subject);
void SsdScanGradContract(const Subject& subject);
void GatedNormContract(const Subject& subject);
void GatedNormGradContract(const Subject& subject);
void CrossEntropyContract(const Subject& subject);
void PolicyLossContract(const Subject& subject);
void ElementwiseContract(const Subject& subject);
void FiniteScanContract(const Subject& subject);
void SumSquaresContract(const Subject& subject);
void StepStatsContract(const Subject& subject);
void BeginStepContract(const Subject& subject);
void AdamWContract(const Subject& subject);
void AdamWSegmentsContract(const Subject& subject);
void MuonMomentumContract(const Subject& subject);
void MuonNormaliseContract(const Subject& subject);
void MuonUpdateContract(const Subject& subject);

// Of each op that reads or writes floats of 16 bits, for a test that has PickFloat give f16
// (F16ForBF16). GPUs have those that train models without experts and mixers.
struct F16Contract {
  const char* name;
  void (*contract)(const Subject& subject);
  bool on_gpus;
};
std::span<const F16Contract> F16Contracts();

}  // namespace millrace::test
