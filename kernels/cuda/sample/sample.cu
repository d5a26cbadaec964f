#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sample/sample_find.cuh"

namespace millrace::cuda {
namespace {

__device__ Amount ShareOf(float share, Amount sum) {
  const Amount wanted =
      __double2ull_rz(ceil(__dmul_rn(static_cast<double>(share), __ull2double_rn(sum))));
  return min(max(wanted, Amount{1}), sum);
}

// The likeliest token. Exponentials are summed.
template <int kBlocks>
__device__ __noinline__ void DrawLikeliest(SampleRow<kBlocks> row, float largest) {
  row.SumExponentials(largest);
  row.FirstOf(largest);
}

template <int kBlocks>
__device__ __noinline__ void SumOnly(SampleRow<kBlocks> row, float largest) {
  row.SumExponentials(largest);
  row.Sync();
}

// Each cut by itself, whatever they are and however many tokens are alike.
template <int kBlocks>
__device__ __noinline__ void DrawByCuts(SampleRow<kBlocks> row, const Cut cut, int vocab,
                                        const SampleParams p, Amount random) {
  const Amounts weights{cut.largest, p.temperature, false}, ones{0, 0, true};
  Amount last = 0;  // of top_k
  if (p.top_k > 0 && p.top_k < vocab) {
    row.template Fill<false>(cut, ones, false);
    row.Find(static_cast<Amount>(p.top_k) - 1, cut, ones);
    last = row.PlaceForAll();
  }
  // From here on only the first block knows amounts.
  Amount mass = row.template Fill<false>(cut, weights, true);
  row.ShowSum();
  if (last > 0) mass = row.Mass(weights, last, 0);
  if (p.top_p < 1) {
    const bool stand = row.Find(ShareOf(p.top_p, mass) - 1, cut, weights);
    mass = row.through();
    if (!stand) row.template Fill<false>(cut, weights, false);
  }
  if (p.min_p > 0) mass = min(mass, row.Mass(weights, 0, ShareOf(p.min_p, Amount{1} << 40)));
  row.Find(__umul64hi(random, mass), cut, weights);
}

// As SampleToken of kernels/ops/sample_row.cc: the first block's place() is the token's.
// Exponentials are summed.
template <int kBlocks>
__device__ __forceinline__ void Draw(SampleRow<kBlocks>& row, const Cut& cut, int vocab,
                                     const SampleParams& p) {
  if (p.temperature <= 0) return DrawLikeliest(row, cut.largest);
  const uint4 words = PhiloxWords(p.seed, kSampleStream, static_cast<uint64_t>(p.drawn));
  const Amount random = Amount{words.x} << 32 | words.y;
  if (p.min_p <= 0 && !(p.top_k > 0 && p.top_k < vocab)) {
    const Amounts weights{cut.largest, p.temperature, false};
    const Amount mass = row.template Fill<true>(cut, weights, true);
    const bool cuts = p.top_p < 1;
    if (row.FindDraw(cut, weights, cuts, cuts ? ShareOf(p.top_p, mass) - 1 : 0, random)) return;
  }
  DrawByCuts(row, cut, vocab, p, random);
}

// The `count` likeliest tokens.
template <int kBlocks>
__device__ __noinline__ void WriteTop(const SampleArgs a, SampleRow<kBlocks> row, int64_t r,
                                      const Cut cut, int count) {
  const Amounts ones{0, 0, true};
  row.Sync();  // the first block has read what the last Find left
  row.template Fill<false>(cut, ones, false);
  row.Find(static_cast<Amount>(count) - 1, cut, ones);
  row.ListThrough(row.PlaceForAll());
  const int i = static_cast<int>(threadIdx.x);
  if (!row.first() || i >= count) return;
  const Amount place = row.Listed(i);
  a.top_ids[r * a.most + i] = IdOf(place);
  a.top_logprobs[r * a.most + i] =
      -static_cast<float>(row.log_sum() - static_cast<double>(row.InMemory(IdOf(place))));
}

// A cluster per row, kResident blocks to a multiprocessor: one has registers enough.
template <int kBlocks, int kResident>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kSampleThreads, kResident)
    SampleKernel(const SampleArgs a, const bool stage) {
  __shared__ SampleShared shared;
  SampleRow<kBlocks>::Prepare(shared);
  BeginKernel();
  if (a.followed) LetNextBegin();
  extern __shared__ uint4 staged[];
  const int64_t r = blockIdx.x / kBlocks;
  const SampleParams p = a.params[r];
  SampleRow<kBlocks> row(a.logits.data + r * a.logits.stride * (a.logits.bf16 ? 2 : 4),
                         a.logits.bf16, a.logits.bf16 && a.logits.wide, a.vocab, shared,
                         stage ? reinterpret_cast<std::byte*>(staged) : nullptr);
  float largest, least;
  const bool bad = row.Begin(largest, least);
  const int count = bad ? 0 : max(0, min(min(p.top, a.most), a.vocab));
  if (row.first())
    for (int i = count + static_cast<int>(threadIdx.x); i < a.most; i += kSampleThreads) {
      a.top_ids[r * a.most + i] = kNoToken;
      a.top_logprobs[r * a.most + i] = bad ? NAN : 0.0f;
    }
  if (bad) {
    if (!row.first() || threadIdx.x > 0) return;
    a.token[r] = kNoToken;
    a.logprob[r] = NAN;
    return;
  }
  const Cut cut(largest, least);
  if (p.given > 0) {
    SumOnly(row, largest);
  } else {
    Draw(row, cut, a.vocab, p);
  }
  row.ShowLogSum(largest);
  row.Sync();
  if (row.first() && threadIdx.x == 0) {
    const int token = p.given > 0 ? min(p.given, a.vocab) - 1 : IdOf(row.place());
    const float logit = p.given > 0 ? row.InMemory(token) : LogitOf(row.place());
    a.token[r] = token;
    a.logprob[r] = -static_cast<float>(row.log_sum() - static_cast<double>(logit));
  }
  if (count == 0) return;
  WriteTop(a, row, r, cut, count);
  row.Sync();  // the first block has read what the others have
}

}  // namespace

namespace {

template <int kResident>
constexpr size_t kMostStaged = kResident == 1 ? 144 << 10 : 70 << 10;  // beside SampleShared

template <int kBlocks, int kResident>
void LaunchBlocks(const SampleArgs& args, const Launch& launch) {
  const size_t bytes = static_cast<size_t>(SampleIdsOfWarp(args.vocab, kBlocks)) * kSampleWarps *
                       (args.logits.bf16 ? sizeof(uint16_t) : sizeof(float));
  const bool stage = bytes <= kMostStaged<kResident>;
  MR_CUDA(cudaFuncSetAttribute(SampleKernel<kBlocks, kResident>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kMostStaged<kResident>));
  LaunchKernel(launch, static_cast<unsigned>(args.rows * kBlocks), kSampleThreads,
               stage ? bytes : 0, SampleKernel<kBlocks, kResident>, args, stage);
}

}  // namespace

bool HasClusterOfSixteen() {
  const auto kernel = SampleKernel<16, 1>;
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  MR_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostStaged<1>));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {16, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = 16, config.blockDim = kSampleThreads, config.dynamicSmemBytes = kMostStaged<1>;
  config.attrs = &cluster, config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess)
    return clusters > 0;
  static_cast<void>(cudaGetLastError());
  return false;
}

void LaunchSample(const SampleArgs& args, const Launch& launch) {
  if (args.rows == 0) return;
  // As many blocks to a row as leave each a multiprocessor: a row's first block works alone for
  // half of the time. Sixteen were timed for a row alone.
  if (args.rows == 1 && args.sixteen) return LaunchBlocks<16, 1>(args, launch);
  if (args.rows * 8 <= launch.sms) return LaunchBlocks<8, 1>(args, launch);
  if (args.rows * 4 <= launch.sms) return LaunchBlocks<4, 1>(args, launch);
  if (args.rows * 2 <= launch.sms) return LaunchBlocks<2, 1>(args, launch);
  LaunchBlocks<2, 2>(args, launch);
}

}  // namespace millrace::cuda
