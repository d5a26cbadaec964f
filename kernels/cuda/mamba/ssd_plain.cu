#include "kernels/cuda/mamba/ssd_plain.cuh"
#include "runtime/base/cuda/launch.cuh"

// The scan in f32: an element of a product is a thread's sum, in order. For shapes and dtypes that
// tensor cores do not take; clear rather than fast. kernels/cpu/mamba/ssd_chunk.h has the letters.
namespace millrace::cuda {
namespace {

// decay[i] = sum of dt*A up to and with i. A thread per chunk of a head.
__global__ void __launch_bounds__(kPlainThreads) DecayKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement();
  if (e >= int64_t{a.batch} * a.chunks * a.heads) return;
  const SsdPlace p = PlaceOf(a, e);
  double* const decay = static_cast<double*>(a.decay) + p.position(a);
  const double rate = static_cast<double>(DecayRate(a, p.head));
  double sum = 0;
  for (int i = 0; i < p.count(a); ++i) {
    sum = __fma_rn(static_cast<double>(a.dt[p.step(a, i)]), rate, sum);
    decay[i] = sum;
  }
}

// c[i].b[j] of each group. A thread per (group, i, j).
__global__ void __launch_bounds__(kPlainThreads) PairsKernel(const SsdArgs a) {
  BeginKernel();
  int64_t e = PlainElement();
  if (e >= int64_t{a.batch} * a.chunks * a.groups * a.rows * a.rows) return;
  float& pair = a.steps_or_pairs[e];
  const int j = static_cast<int>(e % a.rows);
  e /= a.rows;
  const int i = static_cast<int>(e % a.rows);
  e /= a.rows;
  const int group = static_cast<int>(e % a.groups);
  e /= a.groups;
  const SsdPlace p{static_cast<int>(e / a.chunks), static_cast<int>(e % a.chunks),
                   group * a.heads_of_group};
  if (i >= p.count(a) || j > i) return;
  float sum = 0;
  for (int n = 0; n < a.states; ++n)
    sum = __fmaf_rn(At(a.c, p.batch, p.begin(a) + i, group, n),
                    At(a.b, p.batch, p.begin(a) + j, group, n), sum);
  pair = sum;
}

// What each chunk adds to the state: sum over j of exp(s[q-1] - s[j]) dt[j] x[j] (outer) b[j]. Of
// the gradient: sum over i of exp(s[i]) d_out[i] (outer) c[i]. A thread per (chunk, head, p, n).
template <bool kGradient>
__global__ void __launch_bounds__(kPlainThreads) StatesKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement(), size = int64_t{a.channels} * a.states;
  if (e >= int64_t{a.batch} * a.chunks * a.heads * size) return;
  const SsdPlace place = PlaceOf(a, e / size);
  const int p = static_cast<int>(e % size / a.states), n = static_cast<int>(e % a.states);
  const int count = place.count(a), begin = place.begin(a), group = place.group(a);
  float sum = 0;
  for (int j = 0; j < count; ++j) {
    const float weight = kGradient
                             ? FromStart(a, place, j)
                             : __fmul_rn(Between(a, place, count - 1, j), a.dt[place.step(a, j)]);
    const float left = At(kGradient ? a.out : a.x, place.batch, begin + j, place.head, p),
                right = At(kGradient ? a.c : a.b, place.batch, begin + j, group, n);
    sum = __fmaf_rn(__fmul_rn(weight, left), right, sum);
  }
  static_cast<float*>(kGradient ? a.states_behind : a.states_before)[e] = sum;
}

// Chunk after chunk, what it adds gives way to what was there before: the state before the chunk;
// of the gradient, backwards, that of the state behind it. A thread per (sequence, head, p, n).
template <bool kGradient>
__global__ void __launch_bounds__(kPlainThreads) PassKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement(), size = int64_t{a.channels} * a.states;
  if (e >= int64_t{a.batch} * a.heads * size) return;
  const int head = static_cast<int>(e / size % a.heads),
            batch = static_cast<int>(e / size / a.heads);
  float* const states = static_cast<float*>(kGradient ? a.states_behind : a.states_before);
  float state = 0;
  for (int step = 0; step < a.chunks; ++step) {
    const SsdPlace p{batch, kGradient ? a.chunks - 1 - step : step, head};
    float& here = states[p.state(a) + e % size];
    const float added = here;
    here = state;
    state = __fmaf_rn(FromStart(a, p, p.count(a) - 1), state, added);
  }
}

// A thread per element of out.
__global__ void __launch_bounds__(kPlainThreads) OutKernel(const SsdArgs a) {
  BeginKernel();
  const PlainRow r(a, PlainElement(), a.channels);
  if (!r.inside) return;
  const SsdPlace& place = r.place;
  const int begin = place.begin(a);
  const float* const state =
      static_cast<const float*>(a.states_before) + place.state(a) + int64_t{r.column} * a.states;
  float from_state = 0, y = 0;
  for (int n = 0; n < a.states; ++n)
    from_state =
        __fmaf_rn(At(a.c, place.batch, begin + r.i, place.group(a), n), state[n], from_state);
  y = __fmul_rn(FromStart(a, place, r.i), from_state);
  for (int j = 0; j <= r.i; ++j) {
    const float u =
        __fmul_rn(a.dt[place.step(a, j)], At(a.x, place.batch, begin + j, place.head, r.column));
    y = __fmaf_rn(__fmul_rn(Pair(a, place, r.i, j), Between(a, place, r.i, j)), u, y);
  }
  y = __fmaf_rn(ElementOf(a.d, place.head), At(a.x, place.batch, begin + r.i, place.head, r.column),
                y);
  SetElement(a.out.rows, RowAt(a.out, place.batch, begin + r.i, place.head) + r.column, y, false);
}

void LaunchStates(const SsdArgs& a, const Launch& launch) {
  const int64_t heads = int64_t{a.batch} * a.heads, state = int64_t{a.channels} * a.states;
  LaunchPlain(launch, heads * a.chunks, DecayKernel, a);
  LaunchPlain(launch, int64_t{a.batch} * a.chunks * a.groups * a.rows * a.rows, PairsKernel, a);
  LaunchPlain(launch, heads * a.chunks * state, StatesKernel<false>, a);
  LaunchPlain(launch, heads * state, PassKernel<false>, a);
}

}  // namespace

void LaunchSsdPlain(const SsdArgs& a, const Launch& launch) {
  LaunchStates(a, launch);
  LaunchPlain(launch, int64_t{a.batch} * a.length * a.heads * a.channels, OutKernel, a);
}

void LaunchSsdGradPlain(const SsdArgs& a, const Launch& launch) {
  const int64_t heads = int64_t{a.batch} * a.heads, state = int64_t{a.channels} * a.states;
  LaunchStates(a, launch);
  LaunchPlain(launch, heads * a.chunks * state, StatesKernel<true>, a);
  LaunchPlain(launch, heads * state, PassKernel<true>, a);
  LaunchSsdGradientsPlain(a, launch);
}

}  // namespace millrace::cuda
