#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sample/sample_find.cuh"

namespace millrace::cuda {
namespace {

__device__ Amount ShareOf(float share, Amount sum) {
  const Amount wanted =
      __double2ull_rz(ceil(__dmul_rn(static_cast<double>(share), __ull2double_rn(sum))));
  return min(max(wanted, Amount{1}), sum);
}

// As SampleToken of kernels/ops/sample_row.cc: row.place() is the token's. Exponentials are summed.
template <int kBlocks>
__device__ __forceinline__ void Draw(SampleRow<kBlocks>& row, const Cut& cut, int vocab,
                                     const SampleParams& p) {
  if (p.temperature <= 0) {
    row.SumExponentials(cut.largest);
    return row.FirstOf(cut.largest);
  }
  const Amounts weights{cut.largest, p.temperature, false}, ones{0, 0, true};
  Amount last = 0;  // of top_k
  if (p.top_k > 0 && p.top_k < vocab) {
    row.Fill(cut, ones, false);
    row.Find(static_cast<Amount>(p.top_k) - 1, cut, ones);
    last = row.PlaceForAll();
  }
  // From here on only the first block knows amounts.
  Amount mass = row.Fill(cut, weights, true);
  if (last > 0) mass = row.Mass(weights, last, 0);
  if (p.top_p < 1) {
    const bool stand = row.Find(ShareOf(p.top_p, mass) - 1, cut, weights);
    mass = row.through();
    if (!stand) row.Fill(cut, weights, false);
  }
  if (p.min_p > 0) mass = min(mass, row.Mass(weights, 0, ShareOf(p.min_p, Amount{1} << 40)));
  const uint4 words = PhiloxWords(p.seed, kSampleStream, static_cast<uint64_t>(p.drawn));
  row.Find(__umul64hi(Amount{words.x} << 32 | words.y, mass), cut, weights);
}

// The `count` likeliest tokens.
template <int kBlocks>
__device__ __noinline__ void WriteTop(const SampleArgs& a, SampleRow<kBlocks>& row, int64_t r,
                                      const Cut& cut, int count, double log_sum) {
  const Amounts ones{0, 0, true};
  row.Sync();  // the first block has read what the last Find left
  row.Fill(cut, ones, false);
  row.Find(static_cast<Amount>(count) - 1, cut, ones);
  row.ListThrough(row.PlaceForAll());
  const int i = static_cast<int>(threadIdx.x);
  if (!row.first() || i >= count) return;
  const Amount place = row.Listed(i);
  a.top_ids[r * a.most + i] = IdOf(place);
  a.top_logprobs[r * a.most + i] =
      -static_cast<float>(log_sum - static_cast<double>(row.InMemory(IdOf(place))));
}

// A cluster per row.
template <int kBlocks>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kSampleThreads, 2)
    SampleKernel(const SampleArgs a, const bool stage) {
  BeginKernel();
  __shared__ SampleShared shared;
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
    row.Sync();  // all have read what Begin showed
    if (!row.first() || threadIdx.x > 0) return;
    a.token[r] = kNoToken;
    a.logprob[r] = NAN;
    return;
  }
  const Cut cut(largest, least);
  if (p.given > 0) {
    row.SumExponentials(largest);
    row.Sync();
  } else {
    Draw(row, cut, a.vocab, p);
  }
  double log_sum = 0;
  if (row.first()) {
    const int token = p.given > 0 ? min(p.given, a.vocab) - 1 : IdOf(row.place());
    log_sum = static_cast<double>(largest) + log(row.SumOfBlocks());
    if (threadIdx.x == 0) {
      a.token[r] = token;
      a.logprob[r] = -static_cast<float>(log_sum - static_cast<double>(row.InMemory(token)));
    }
  }
  if (count > 0) WriteTop(a, row, r, cut, count, log_sum);
  row.Sync();  // the first block has read what the others have
}

}  // namespace

namespace {

template <int kBlocks>
void LaunchBlocks(const SampleArgs& args, const Launch& launch) {
  // Two blocks to a multiprocessor.
  constexpr size_t kMostStaged = 72 << 10;
  const size_t bytes = static_cast<size_t>(SampleIdsOfWarp(args.vocab, kBlocks)) * kSampleWarps *
                       (args.logits.bf16 ? sizeof(uint16_t) : sizeof(float));
  const bool stage = bytes <= kMostStaged;
  MR_CUDA(cudaFuncSetAttribute(SampleKernel<kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kMostStaged));
  LaunchKernel(launch, static_cast<unsigned>(args.rows * kBlocks), kSampleThreads,
               stage ? bytes : 0, SampleKernel<kBlocks>, args, stage);
}

}  // namespace

void LaunchSample(const SampleArgs& args, const Launch& launch) {
  if (args.rows == 0) return;
  // As many blocks to a row as the device has room for at once: a row's first block works alone for
  // half of the time.
  if (args.rows * 8 <= 2 * launch.sms) return LaunchBlocks<8>(args, launch);
  LaunchBlocks<4>(args, launch);
}

}  // namespace millrace::cuda
