#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"
#include "runtime/base/cuda/launch.cuh"

// The scan's states on tensor cores: before each chunk, or their gradients behind it.
namespace millrace::cuda {
namespace {

// The states of one head of one sequence, or half of them, chunk after chunk in registers:
// [P, kStates], a warp has 16 of the channels and 64 states. Operands come in parts of a chunk, of
// which two are on their way while one is multiplied. Sixteen warps have room on a multiprocessor:
// of 64 heads of four sequences all run at once. Half as many are better spread in halves, which
// read x or d_out twice.
constexpr int kOfWarp = 64, kWarpsPerSm = 16;
constexpr int kPart = kQ / 2, kParts = kQ / kPart, kBuffers = 3;
template <int kStates>
inline constexpr int kThreads = kP / 16 * (kStates / kOfWarp) * kWarp;
template <int kStates>
inline constexpr int kBlocksPerSm = kWarpsPerSm* kWarp / kThreads<kStates>;
template <int kStates>
struct Buffers {
  uint16_t left[kBuffers][kPart * kP], right[kBuffers][kPart * kStates];
  float weights[2][kQ], whole[2];  // of two chunks
};
static_assert(kBlocksPerSm<kN / 2> * (sizeof(Buffers<kN / 2>) + 1024) <= 228 * 1024);
static_assert(kBlocksPerSm<kN> * (sizeof(Buffers<kN>) + 1024) <= 228 * 1024);

// Begins to fill the buffer of a part. kGradient: of d_out and c; else of dt*x and b.
template <bool kGradient, int kStates>
__device__ __forceinline__ void FillPart(Buffers<kStates>& s, int buffer, const SsdArgs& a,
                                         const SsdPlace& p, int part) {
  constexpr int kBlock = kThreads<kStates>;
  const Sequence &left = kGradient ? a.out : a.x, right = kGradient ? a.c : a.b;
  const int first = p.begin(a) + part * kPart, count = p.count(a) - part * kPart;
  FillTile<kPart, kP, kBlock>(Tile<kP>{s.left[buffer]},
                              left.rows.data + 2 * RowAt(left, p.batch, first, p.head),
                              static_cast<int>(left.rows.stride), count, left.rows.wide);
  FillTile<kPart, kStates, kBlock>(Tile<kStates>{s.right[buffer]},
                                   right.rows.data + 2 * (RowAt(right, p.batch, first, p.group(a)) +
                                                          int64_t{blockIdx.x} * kStates),
                                   static_cast<int>(right.rows.stride), count, right.rows.wide);
}

// What a thread's position of a chunk counts for the state behind it (before it, kGradient). Of the
// first kQ threads.
struct Weight {
  float decay = 0, last = 0, dt = 0;
  Weight() = default;
  __device__ Weight(const SsdArgs& a, const SsdPlace& p) {
    if (threadIdx.x >= kQ) return;
    const float* const decays = static_cast<const float*>(a.decay) + p.position(a);
    decay = decays[threadIdx.x], last = decays[kQ - 1];
    dt = a.steps_or_pairs[p.position(a) + threadIdx.x];
  }
  template <bool kGradient, int kStates>
  __device__ void Store(Buffers<kStates>& s, int chunk) const {
    if (threadIdx.x >= kQ) return;
    s.weights[chunk][threadIdx.x] =
        kGradient ? Exp2(decay) : __fmul_rn(Exp2(__fsub_rn(last, decay)), dt);
    if (threadIdx.x == 0) s.whole[chunk] = Exp2(last);
  }
};

// Rows of a, scaled: columns k0 .. of the weights.
__device__ __forceinline__ void ScaleColumns(uint32_t (&a)[4], const float* weights) {
  const int q = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float* const w = weights + q + r / 2 * 8;
    a[r] = PairOfBF16(__fmul_rn(__uint_as_float(a[r] << 16), w[0]),
                      __fmul_rn(__uint_as_float(a[r] & 0xffff0000u), w[1]));
  }
}

// state += what a part adds; of 16 channels, and the states from `column` on.
template <int kStates>
__device__ __forceinline__ void AddPart(float (&state)[kOfWarp / 8][4], Buffers<kStates>& s,
                                        int buffer, const float* weights, int channel, int column) {
  const Tile<kP> left{s.left[buffer]};
  const Tile<kStates> right{s.right[buffer]};
#pragma unroll
  for (int k = 0; k < kPart; k += 16) {
    uint32_t x[4];
    left.LoadATransposed(x, channel, 0, 0, k);
    ScaleColumns(x, weights + k);
#pragma unroll
    for (int t = 0; t < kOfWarp / 8; t += 2) {
      uint32_t b[4];
      right.LoadBTransposed(b, 0, k, column, 8 * t);
      Mma(state[t], x, b[0], b[1]);
      Mma(state[t + 1], x, b[2], b[3]);
    }
  }
}

// kGradient: backwards.
template <bool kGradient, int kStates>
__global__ void __launch_bounds__(kThreads<kStates>, kBlocksPerSm<kStates>)
    StatesKernel(const SsdArgs a) {
  extern __shared__ __align__(256) unsigned char shared_memory[];
  BeginKernel();
  Buffers<kStates>& s = *reinterpret_cast<Buffers<kStates>*>(shared_memory);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, channel = warp % (kP / 16) * 16,
            column = warp / (kP / 16) * kOfWarp;
  const auto place = [&](int step) {
    return SsdPlace{static_cast<int>(blockIdx.z), kGradient ? a.chunks - 1 - step : step,
                    static_cast<int>(blockIdx.y)};
  };
  std::byte* const states = static_cast<std::byte*>(kGradient ? a.states_behind : a.states_before);
  float state[kOfWarp / 8][4] = {};
  const auto store = [&](int step) {
    StoreRows(RowsOfChunk(states + 2 * (place(step).state(a) + int64_t{blockIdx.x} * kStates), kP),
              channel, column, state);
  };
  // Of the last chunk nobody reads what it adds.
  const int parts = (a.chunks - 1) * kParts;
  const auto fill = [&](int part) {
    if (part < parts)
      FillPart<kGradient, kStates>(s, part % kBuffers, a, place(part / kParts), part % kParts);
    CommitCopies();
  };
  if (parts > 0) Weight(a, place(0)).template Store<kGradient>(s, 0);
  for (int part = 0; part < kBuffers - 1; ++part) fill(part);
  for (int part = 0; part < parts; ++part) {
    const int step = part / kParts, chunk = step % 2;
    const bool begins = part % kParts == 0, weigh = begins && part + kParts < parts;
    WaitCopies<kBuffers - 2>();
    __syncthreads();  // the part is there, and the one before it has been read
    fill(part + kBuffers - 1);
    Weight next;
    if (weigh) next = Weight(a, place(step + 1));
    if (begins) {
      store(step);
#pragma unroll
      for (int t = 0; t < kOfWarp / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) state[t][e] = __fmul_rn(state[t][e], s.whole[chunk]);
    }
    AddPart(state, s, part % kBuffers, s.weights[chunk] + part % kParts * kPart, channel, column);
    if (weigh) next.template Store<kGradient>(s, 1 - chunk);
  }
  WaitCopies<0>();
  store(a.chunks - 1);
}

template <bool kGradient, int kStates>
void LaunchStates(const SsdArgs& a, const Launch& launch) {
  const dim3 grid(kN / kStates, static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
  AllowShared(StatesKernel<kGradient, kStates>, sizeof(Buffers<kStates>));
  LaunchKernel(launch, grid, kThreads<kStates>, sizeof(Buffers<kStates>),
               StatesKernel<kGradient, kStates>, a);
}

}  // namespace

template <bool kGradient>
void LaunchSsdStates(const SsdArgs& a, const Launch& launch) {
  if (int64_t{a.heads} * a.batch > launch.sms)
    LaunchStates<kGradient, kN>(a, launch);
  else
    LaunchStates<kGradient, kN / 2>(a, launch);
}
template void LaunchSsdStates<false>(const SsdArgs&, const Launch&);
template void LaunchSsdStates<true>(const SsdArgs&, const Launch&);

}  // namespace millrace::cuda
