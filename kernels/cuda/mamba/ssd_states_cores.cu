#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/ssd_cores.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

// The scan's states on tensor cores: before each chunk, or their gradients behind it.
namespace millrace::cuda {
namespace {

// Half the states of one head of one sequence, chunk after chunk in registers: [P, N/2], a warp has
// 16 of the channels. Operands come in parts of a chunk, of which two are on their way while one is
// multiplied. Four blocks have room on a multiprocessor: of 128 heads of two sequences all run at
// once.
constexpr int kThreads = 128, kBlocksPerSm = 4, kHalf = kN / 2;
constexpr int kPart = kQ / 2, kParts = kQ / kPart, kBuffers = 3;
struct Buffers {
  uint16_t left[kBuffers][kPart * kP], right[kBuffers][kPart * kHalf];
  float weights[2][kQ], whole[2];  // of two chunks
};
static_assert(kThreads == kQ && kBlocksPerSm * (sizeof(Buffers) + 1024) <= 228 * 1024);

// Begins to fill the buffer of a part. kGradient: of d_out and c; else of dt*x and b.
template <bool kGradient>
__device__ __forceinline__ void FillPart(Buffers& s, int buffer, const SsdArgs& a,
                                         const SsdPlace& p, int part) {
  const Sequence &left = kGradient ? a.out : a.x, right = kGradient ? a.c : a.b;
  const int first = p.begin(a) + part * kPart, count = p.count(a) - part * kPart;
  FillTile<kPart, kP, kThreads>(Tile<kP>{s.left[buffer]},
                                left.rows.data + 2 * RowAt(left, p.batch, first, p.head),
                                left.rows.stride, count, left.rows.wide);
  FillTile<kPart, kHalf, kThreads>(Tile<kHalf>{s.right[buffer]},
                                   right.rows.data + 2 * (RowAt(right, p.batch, first, p.group(a)) +
                                                          int64_t{blockIdx.x} * kHalf),
                                   right.rows.stride, count, right.rows.wide);
}

// What a thread's position of a chunk counts for the state behind it (before it, kGradient).
struct Weight {
  float decay = 0, last = 0, dt = 0;
  Weight() = default;
  __device__ Weight(const SsdArgs& a, const SsdPlace& p) {
    const float* const decays = static_cast<const float*>(a.decay) + p.position(a);
    decay = decays[threadIdx.x], last = decays[kQ - 1];
    dt = a.steps_or_pairs[p.position(a) + threadIdx.x];
  }
  template <bool kGradient>
  __device__ void Store(Buffers& s, int chunk) const {
    s.weights[chunk][threadIdx.x] = kGradient ? exp2f(decay) : __fmul_rn(exp2f(last - decay), dt);
    if (threadIdx.x == 0) s.whole[chunk] = exp2f(last);
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

// state += what a part adds.
__device__ __forceinline__ void AddPart(float (&state)[kHalf / 8][4], Buffers& s, int buffer,
                                        const float* weights, int channel) {
  const Tile<kP> left{s.left[buffer]};
  const Tile<kHalf> right{s.right[buffer]};
#pragma unroll
  for (int k = 0; k < kPart; k += 16) {
    uint32_t x[4];
    left.LoadATransposed(x, channel, k);
    ScaleColumns(x, weights + k);
#pragma unroll
    for (int t = 0; t < kHalf / 8; t += 2) {
      uint32_t b[4];
      right.LoadBTransposed(b, k, 8 * t);
      Mma(state[t], x, b[0], b[1]);
      Mma(state[t + 1], x, b[2], b[3]);
    }
  }
}

// kGradient: backwards.
template <bool kGradient>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) StatesKernel(const SsdArgs a) {
  extern __shared__ __align__(256) unsigned char shared_memory[];
  BeginKernel();
  Buffers& s = *reinterpret_cast<Buffers*>(shared_memory);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            channel = static_cast<int>(threadIdx.x) / kWarp * 16;
  const auto place = [&](int step) {
    return SsdPlace{static_cast<int>(blockIdx.z), kGradient ? a.chunks - 1 - step : step,
                    static_cast<int>(blockIdx.y)};
  };
  std::byte* const states = static_cast<std::byte*>(kGradient ? a.states_behind : a.states_before);
  float state[kHalf / 8][4] = {};
  const auto store = [&](int step) {
    std::byte* const to = states + 2 * (place(step).state(a) + (channel + lane / 4) * kN +
                                        int64_t{blockIdx.x} * kHalf + lane % 4 * 2);
#pragma unroll
    for (int t = 0; t < kHalf / 8; ++t) {
      StorePair(to + 16 * t, state[t][0], state[t][1]);
      StorePair(to + 16 * t + 2 * 8 * kN, state[t][2], state[t][3]);
    }
  };
  // Of the last chunk nobody reads what it adds.
  const int parts = (a.chunks - 1) * kParts;
  const auto fill = [&](int part) {
    if (part < parts)
      FillPart<kGradient>(s, part % kBuffers, a, place(part / kParts), part % kParts);
    CommitCopies();
  };
  if (parts > 0) Weight(a, place(0)).Store<kGradient>(s, 0);
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
      for (int t = 0; t < kHalf / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) state[t][e] = __fmul_rn(state[t][e], s.whole[chunk]);
    }
    AddPart(state, s, part % kBuffers, s.weights[chunk] + part % kParts * kPart, channel);
    if (weigh) next.Store<kGradient>(s, 1 - chunk);
  }
  WaitCopies<0>();
  store(a.chunks - 1);
}

}  // namespace

template <bool kGradient>
void LaunchSsdStates(const SsdArgs& a, const Launch& launch) {
  const dim3 grid(2, static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
  AllowShared(StatesKernel<kGradient>, sizeof(Buffers));
  LaunchKernel(launch, grid, kThreads, sizeof(Buffers), StatesKernel<kGradient>, a);
}
template void LaunchSsdStates<false>(const SsdArgs&, const Launch&);
template void LaunchSsdStates<true>(const SsdArgs&, const Launch&);

}  // namespace millrace::cuda
