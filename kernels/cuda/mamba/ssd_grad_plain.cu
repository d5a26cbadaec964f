#include "kernels/cuda/mamba/ssd_plain.cuh"

// kernels/cpu/mamba/ssd_scan_grad.cc has the formulas.
namespace millrace::cuda {
namespace {

__device__ __forceinline__ float& PairGradient(const SsdArgs& a, const SsdPlace& p, int i, int j) {
  return static_cast<float*>(a.d_pairs)[p.of_head(a) * a.rows * a.rows + int64_t{i} * a.rows + j];
}

// dW[i,j], of each head. A thread per (chunk, head, i, j).
__global__ void __launch_bounds__(kPlainThreads) PairGradientKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement(), pairs = int64_t{a.rows} * a.rows;
  if (e >= int64_t{a.batch} * a.chunks * a.heads * pairs) return;
  const SsdPlace p = PlaceOf(a, e / pairs);
  const int i = static_cast<int>(e % pairs / a.rows), j = static_cast<int>(e % a.rows);
  if (i >= p.count(a) || j > i) return;
  float sum = 0;
  for (int k = 0; k < a.channels; ++k)
    sum = __fmaf_rn(At(a.out, p.batch, p.begin(a) + i, p.head, k),
                    At(a.x, p.batch, p.begin(a) + j, p.head, k), sum);
  PairGradient(a, p, i, j) = __fmul_rn(__fmul_rn(sum, a.dt[p.step(a, j)]), Between(a, p, i, j));
}

// d_u and d_x. A thread per element.
__global__ void __launch_bounds__(kPlainThreads) XKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement();
  const PlainRow r(a, e, a.channels);
  if (!r.inside) return;
  const SsdPlace& p = r.place;
  const int count = p.count(a), begin = p.begin(a), j = r.i;
  const float* const state =
      static_cast<const float*>(a.states_behind) + p.state(a) + int64_t{r.column} * a.states;
  float from_state = 0;
  for (int n = 0; n < a.states; ++n)
    from_state = __fmaf_rn(state[n], At(a.b, p.batch, begin + j, p.group(a), n), from_state);
  float d_u = __fmul_rn(Between(a, p, count - 1, j), from_state);
  for (int i = j; i < count; ++i)
    d_u = __fmaf_rn(__fmul_rn(Pair(a, p, i, j), Between(a, p, i, j)),
                    At(a.out, p.batch, begin + i, p.head, r.column), d_u);
  a.d_u[e] = d_u;
  const float d_x =
      __fmaf_rn(ElementOf(a.d, p.head), At(a.out, p.batch, begin + j, p.head, r.column),
                __fmul_rn(a.dt[p.step(a, j)], d_u));
  SetElement(a.d_x.rows, RowAt(a.d_x, p.batch, begin + j, p.head) + r.column, d_x, false);
}

// d_b (else d_c): over a group's heads, what pairs and states give. A thread per element.
template <bool kB>
__global__ void __launch_bounds__(kPlainThreads) GroupKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement();
  if (e >= int64_t{a.batch} * a.length * a.groups * a.states) return;
  const int n = static_cast<int>(e % a.states), group = static_cast<int>(e / a.states % a.groups);
  const int64_t position = e / a.states / a.groups;
  const int batch = static_cast<int>(position / a.length),
            t = static_cast<int>(position % a.length), k = t % a.chunk;
  float sum = 0;
  for (int h = 0; h < a.heads_of_group; ++h) {
    const SsdPlace p{batch, t / a.chunk, group * a.heads_of_group + h};
    const int count = p.count(a), begin = p.begin(a);
    const float* const state =
        static_cast<const float*>(kB ? a.states_behind : a.states_before) + p.state(a) + n;
    float from_state = 0;
    for (int c = 0; c < a.channels; ++c)
      from_state = __fmaf_rn(At(kB ? a.x : a.out, batch, t, p.head, c),
                             state[int64_t{c} * a.states], from_state);
    const float weight =
        kB ? __fmul_rn(Between(a, p, count - 1, k), a.dt[p.step(a, k)]) : FromStart(a, p, k);
    sum = __fmaf_rn(weight, from_state, sum);
    for (int other = kB ? k : 0; other < (kB ? count : k + 1); ++other)
      sum = __fmaf_rn(kB ? PairGradient(a, p, other, k) : PairGradient(a, p, k, other),
                      At(kB ? a.c : a.b, batch, begin + other, group, n), sum);
  }
  const Sequence& to = kB ? a.d_b : a.d_c;
  SetElement(to.rows, RowAt(to, batch, t, group) + n, sum, false);
}

// What a position's own factors add to spans: exp(s[i]) d_out[i].(S c[i]), e[j] u[j].(dS b[j]), and
// x.d_u. A thread per position of a head.
__global__ void __launch_bounds__(kPlainThreads) PositionKernel(const SsdArgs a) {
  BeginKernel();
  const PlainRow r(a, PlainElement(), 1);
  if (!r.inside) return;
  const SsdPlace& p = r.place;
  const int count = p.count(a), t = p.begin(a) + r.i, group = p.group(a);
  const float* const before = static_cast<const float*>(a.states_before) + p.state(a);
  const float* const behind = static_cast<const float*>(a.states_behind) + p.state(a);
  const float* const d_u =
      a.d_u + ((int64_t{p.batch} * a.length + t) * a.heads + p.head) * a.channels;
  double from_state = 0, to_state = 0, from_x = 0;
  for (int k = 0; k < a.channels; ++k) {
    float s_c = 0, ds_b = 0;
    for (int n = 0; n < a.states; ++n) {
      s_c = __fmaf_rn(before[int64_t{k} * a.states + n], At(a.c, p.batch, t, group, n), s_c);
      ds_b = __fmaf_rn(behind[int64_t{k} * a.states + n], At(a.b, p.batch, t, group, n), ds_b);
    }
    const double x = static_cast<double>(At(a.x, p.batch, t, p.head, k));
    from_state += static_cast<double>(At(a.out, p.batch, t, p.head, k)) * static_cast<double>(s_c);
    to_state += x * static_cast<double>(ds_b);
    from_x += x * static_cast<double>(d_u[k]);
  }
  const float step = a.dt[p.step(a, r.i)];
  float* const spans = a.spans + 4 * (p.position(a) + r.i);
  spans[0] = __fmul_rn(FromStart(a, p, r.i), static_cast<float>(from_state));
  spans[1] =
      __fmul_rn(__fmul_rn(Between(a, p, count - 1, r.i), step), static_cast<float>(to_state));
  spans[2] = static_cast<float>(from_x);
}

// Pairs (i, j) with j < k, summed, in place of pair (i, k): of each row i. A thread per row.
__global__ void __launch_bounds__(kPlainThreads) PrefixKernel(const SsdArgs a) {
  BeginKernel();
  const PlainRow r(a, PlainElement(), 1);
  if (!r.inside) return;
  double before = 0;
  for (int k = 0; k <= r.i; ++k) {
    float& pair = PairGradient(a, r.place, r.i, k);
    const double value = static_cast<double>(pair) * static_cast<double>(Pair(a, r.place, r.i, k));
    pair = static_cast<float>(before);
    before += value;
  }
}

// The sum over pairs that span a position. A thread per position.
__global__ void __launch_bounds__(kPlainThreads) SpanKernel(const SsdArgs a) {
  BeginKernel();
  const PlainRow r(a, PlainElement(), 1);
  if (!r.inside) return;
  double sum = 0;
  for (int i = r.i; i < r.place.count(a); ++i)
    sum += static_cast<double>(PairGradient(a, r.place, i, r.i));
  a.spans[4 * (r.place.position(a) + r.i) + 3] = static_cast<float>(sum);
}

// d_dt, and the chunk's sums of d_a_log and d_d. A thread per chunk of a head.
__global__ void __launch_bounds__(kPlainThreads) StepKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t e = PlainElement(), places = int64_t{a.batch} * a.chunks * a.heads;
  if (e >= places) return;
  const SsdPlace p = PlaceOf(a, e);
  const int count = p.count(a), size = a.channels * a.states;
  const float* const spans = a.spans + 4 * p.position(a);
  const double rate = static_cast<double>(DecayRate(a, p.head));
  double after = 0, before = 0, d_a = 0, d_d = 0;
  for (int i = 0; i < count; ++i) after += static_cast<double>(spans[4 * i]);
  for (int s = 0; s < size; ++s)
    before += static_cast<double>(static_cast<const float*>(a.states_before)[p.state(a) + s]) *
              static_cast<double>(static_cast<const float*>(a.states_behind)[p.state(a) + s]);
  before *= static_cast<double>(FromStart(a, p, count - 1));
  for (int i = 0; i < count; ++i) {
    const double span = static_cast<double>(spans[4 * i + 3]) + after + before;
    a.d_dt[p.step(a, i)] = static_cast<float>(static_cast<double>(spans[4 * i + 2]) + rate * span);
    d_a += static_cast<double>(a.dt[p.step(a, i)]) * rate * span;
    after -= static_cast<double>(spans[4 * i]);
    before += static_cast<double>(spans[4 * i + 1]);
    for (int c = 0; c < a.channels; ++c)
      d_d += static_cast<double>(At(a.out, p.batch, p.begin(a) + i, p.head, c)) *
             static_cast<double>(At(a.x, p.batch, p.begin(a) + i, p.head, c));
  }
  a.sums[e] = d_a;
  a.sums[places + e] = d_d;
}

__global__ void __launch_bounds__(kPlainThreads) SumsKernel(const SsdArgs a) {
  BeginKernel();
  const int64_t h = PlainElement(), chunks = int64_t{a.batch} * a.chunks;
  if (h >= a.heads) return;
  double d_a_log = 0, d_d = 0;
  for (int64_t k = 0; k < chunks; ++k) {
    d_a_log += a.sums[k * a.heads + h];
    d_d += a.sums[(chunks + k) * a.heads + h];
  }
  SetElement(a.d_a_log, h, static_cast<float>(d_a_log), a.add_a_log);
  SetElement(a.d_d, h, static_cast<float>(d_d), a.add_d);
}

}  // namespace

void LaunchSsdGradientsPlain(const SsdArgs& a, const Launch& launch) {
  const int64_t positions = int64_t{a.batch} * a.length, heads = positions * a.heads,
                chunks = int64_t{a.batch} * a.chunks * a.heads;
  LaunchPlain(launch, chunks * a.rows * a.rows, PairGradientKernel, a);
  LaunchPlain(launch, heads * a.channels, XKernel, a);
  LaunchPlain(launch, positions * a.groups * a.states, GroupKernel<true>, a);
  LaunchPlain(launch, positions * a.groups * a.states, GroupKernel<false>, a);
  LaunchPlain(launch, heads, PositionKernel, a);
  LaunchPlain(launch, heads, PrefixKernel, a);
  LaunchPlain(launch, heads, SpanKernel, a);
  LaunchPlain(launch, chunks, StepKernel, a);
}

void LaunchSsdSums(const SsdArgs& a, const Launch& launch) {
  LaunchPlain(launch, a.heads, SumsKernel, a);
}

}  // namespace millrace::cuda
