#include "kernels/cpu/documents.h"
#include "kernels/cpu/mamba/ssd_chunk.h"
#include "kernels/cpu/mamba/ssd_scan.h"

// With M[i,j] = exp(s[i] - s[j]) c[i].b[j], S the state before the chunk and dS the gradient of the
// state behind it, e the decay to the chunk's end:
//   d_u[j] = sum over i >= j of M[i,j] d_out[i] + e[j] dS b[j];  d_x = dt d_u + d d_out
//   dW[i,j] = exp(s[i] - s[j]) d_out[i].u[j], the gradient of c[i].b[j]
//   d_c[i] = sum over j of dW[i,j] b[j] + exp(s[i]) d_out[i] S
//   d_b[j] = sum over i of dW[i,j] c[i] + e[j] u[j] dS
//   dS before the chunk = exp(s[q-1]) dS + sum over i of exp(s[i]) d_out[i] (outer) c[i]
// dt[k] A stands in each exponent that spans position k, so its gradient is the sum of
//   dW[i,j] c[i].b[j] over pairs j < k <= i;  exp(s[i]) d_out[i].(S c[i]) over i >= k;
//   e[j] u[j].(dS b[j]) over j < k;  exp(s[q-1]) S.dS.
namespace millrace::cpu {
namespace {

class ScanGrad {
 public:
  ScanGrad(const SsdScanGradOp<TensorView>& op, const SsdSizes& s, Scratch& scratch)
      : op_(op),
        s_(s),
        P_(s.channels),
        N_(s.states),
        documents_(op.documents, s.batch, s.length),
        chunk_(s, scratch) {
    const int64_t rows = s.rows();
    spans_ = reinterpret_cast<double*>(scratch.Take(2 * rows));
    a_sums_ = reinterpret_cast<double*>(scratch.Take(2 * s.heads));
    d_sums_ = reinterpret_cast<double*>(scratch.Take(2 * s.heads));
    from_state_ = scratch.Take(rows);
    to_state_ = scratch.Take(rows);
    d_out_ = scratch.Take(rows * P_);
    d_u_ = scratch.Take(rows * P_);
    product_ = scratch.Take(rows * std::max(P_, N_));
    weights_ = scratch.Take(rows * rows);
    decayed_ = scratch.Take(rows * rows);
    states_ = scratch.Take(s.chunks() * s.state());
    d_state_ = scratch.Take(s.state());
    d_b_ = scratch.Take(s.length * N_);
    d_c_ = scratch.Take(s.length * N_);
    std::fill_n(a_sums_, s.heads, 0.0);
    std::fill_n(d_sums_, s.heads, 0.0);
  }

  void Run() {
    for (int64_t b = 0; b < s_.batch; ++b)
      for (int64_t g = 0; g < s_.groups; ++g) {
        std::fill_n(d_b_, s_.length * N_, 0.0f);
        std::fill_n(d_c_, s_.length * N_, 0.0f);
        for (int64_t i = 0; i < s_.heads_of_group(); ++i)
          documents_.ForEach(b, [&](int64_t begin, int64_t end) {
            Head(b, g * s_.heads_of_group() + i, begin, end);
          });
        StoreRows(op_.d_b, b, 0, s_.length, g, d_b_);
        StoreRows(op_.d_c, b, 0, s_.length, g, d_c_);
      }
    StoreSums(op_.d_a_log, a_sums_, op_.a_log_update);
    StoreSums(op_.d_d, d_sums_, op_.d_update);
  }

 private:
  // Of the document [first, end).
  void Head(int64_t b, int64_t h, int64_t first, int64_t end) {
    const int64_t chunks = CeilDiv(end - first, s_.chunk);
    for (int64_t k = 0; k < chunks; ++k) {  // the state before each chunk
      float* const state = states_ + k * s_.state();
      if (k == 0) {
        std::fill_n(state, s_.state(), 0.0f);
        continue;
      }
      std::copy_n(state - s_.state(), s_.state(), state);
      chunk_.Read(op_, b, first + (k - 1) * s_.chunk, end, h);
      chunk_.Advance(state, product_);
    }
    std::fill_n(d_state_, s_.state(), 0.0f);
    for (int64_t k = chunks - 1; k >= 0; --k)
      Chunk(b, first + k * s_.chunk, end, h, states_ + k * s_.state());
  }

  void Chunk(int64_t b, int64_t begin, int64_t end, int64_t h, const float* state) {
    chunk_.Read(op_, b, begin, end, h);
    LoadRows(op_.d_out, b, begin, chunk_.q, h, d_out_);
    Pairs();
    GradientOfX(b, begin, h);
    GradientOfC(state, d_c_ + begin * N_);
    GradientOfB(d_b_ + begin * N_);
    GradientOfSteps(state, b, begin, h);
    StateBefore();
  }

  // weights_ = dW, decayed_ = M, spans_[k] = the sum over pairs that span k.
  void Pairs() {
    const int64_t q = chunk_.q;
    Gemm(q, q, N_, 1, {chunk_.c, N_}, {chunk_.b, N_, true}, 0, decayed_, q);
    Gemm(q, q, P_, 1, {d_out_, P_}, {chunk_.u, P_, true}, 0, weights_, q);
    std::fill_n(spans_, q, 0.0);
    for (int64_t i = 0; i < q; ++i) {
      double before = 0;  // of pairs (i, j), j < k
      for (int64_t j = 0; j < q; ++j) {
        float &dw = weights_[i * q + j], &m = decayed_[i * q + j];
        if (j > i) {
          dw = m = 0;
          continue;
        }
        const float l = chunk_.Between(i, j);
        dw *= l;
        if (j > 0) spans_[j] += before;
        before += double{dw} * double{m};
        m *= l;
      }
    }
  }

  void GradientOfX(int64_t b, int64_t begin, int64_t h) {
    const int64_t q = chunk_.q, count = q * P_;
    const float d = ElementOf(op_.d, h);
    const float* const dt = chunk_.StepsOf(op_, b, begin, h);
    Gemm(q, P_, N_, 1, {chunk_.b, N_}, {d_state_, N_, true}, 0, d_u_, P_);
    chunk_.Scale(d_u_, P_, d_u_, [&](int64_t j) { return chunk_.ToEnd(j); });
    for (int64_t j = 0; j < q; ++j)
      to_state_[j] = static_cast<float>(DotInDouble(chunk_.u + j * P_, d_u_ + j * P_, P_));
    Gemm(q, P_, q, 1, {decayed_, q, true}, {d_out_, P_}, 1, d_u_, P_);
    for (int64_t e = 0; e < count; ++e)
      product_[e] = dt[e / P_ * s_.heads] * d_u_[e] + d * d_out_[e];
    StoreRows(op_.d_x, b, begin, q, h, product_);
    d_sums_[h] += DotInDouble(chunk_.x, d_out_, count);
  }

  void GradientOfC(const float* state, float* d_c) {
    const int64_t q = chunk_.q;
    Gemm(q, N_, P_, 1, {d_out_, P_}, {state, N_}, 0, product_, N_);
    chunk_.Scale(product_, N_, product_, [&](int64_t i) { return chunk_.FromStart(i); });
    for (int64_t i = 0; i < q; ++i)
      from_state_[i] = static_cast<float>(DotInDouble(chunk_.c + i * N_, product_ + i * N_, N_));
    Gemm(q, N_, q, 1, {weights_, q}, {chunk_.b, N_}, 1, product_, N_);
    for (int64_t e = 0; e < q * N_; ++e) d_c[e] += product_[e];
  }

  void GradientOfB(float* d_b) {
    const int64_t q = chunk_.q;
    Gemm(q, N_, P_, 1, {chunk_.u, P_}, {d_state_, N_}, 0, product_, N_);
    chunk_.Scale(product_, N_, product_, [&](int64_t j) { return chunk_.ToEnd(j); });
    Gemm(q, N_, q, 1, {weights_, q, true}, {chunk_.c, N_}, 1, product_, N_);
    for (int64_t e = 0; e < q * N_; ++e) d_b[e] += product_[e];
  }

  void GradientOfSteps(const float* state, int64_t b, int64_t begin, int64_t h) {
    const int64_t q = chunk_.q;
    const float* const dt = chunk_.StepsOf(op_, b, begin, h);
    float* const d_dt = op_.d_dt.as<float>() + (b * s_.length + begin) * s_.heads + h;
    double after = 0;  // of what begins before the chunk, from position i on
    for (int64_t i = q - 1; i >= 0; --i) spans_[i] += after += double{from_state_[i]};
    double before = double{chunk_.FromStart(q - 1)} * DotInDouble(state, d_state_, s_.state());
    for (int64_t i = 0; i < q; ++i) {
      spans_[i] += before;
      before += double{to_state_[i]};
      const double from_x = DotInDouble(chunk_.x + i * P_, d_u_ + i * P_, P_);
      d_dt[i * s_.heads] = static_cast<float>(from_x + double{chunk_.a} * spans_[i]);
      a_sums_[h] += double{dt[i * s_.heads]} * double{chunk_.a} * spans_[i];
    }
  }

  // d_state_: from behind the chunk to before it.
  void StateBefore() {
    const float whole = chunk_.FromStart(chunk_.q - 1);
    for (int64_t e = 0; e < s_.state(); ++e) d_state_[e] *= whole;
    chunk_.Scale(d_out_, P_, d_u_, [&](int64_t i) { return chunk_.FromStart(i); });
    Gemm(P_, N_, chunk_.q, 1, {d_u_, P_, true}, {chunk_.c, N_}, 1, d_state_, N_);
  }

  void StoreSums(const TensorView& to, const double* sums, Update update) const {
    ForChunks(s_.heads, [&](int64_t h, int64_t n) {
      float values[kChunk];
      for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(sums[h + i]);
      StoreOrAdd(AsRow(to), h, n, values, update == Update::kAccumulate);
    });
  }

  const SsdScanGradOp<TensorView>& op_;
  const SsdSizes s_;
  const int64_t P_, N_;
  const Documents documents_;
  SsdChunk chunk_;
  double *spans_, *a_sums_, *d_sums_;
  float *from_state_, *to_state_, *d_out_, *d_u_, *product_, *weights_, *decayed_, *states_,
      *d_state_, *d_b_, *d_c_;
};

}  // namespace

void SsdScanGrad(const SsdScanGradOp<TensorView>& op, Stream&) {
  CheckScan(op, op.d_x);
  MR_CHECK(op.d_dt.dtype() == DType::kF32 && op.d_dt.layout.contiguous() &&
               op.d_dt.numel() == op.dt.numel(),
           "ssd_scan_grad: d_dt is {}", ToString(op.d_dt.layout));
  Scratch scratch(op.scratch);
  ScanGrad(op, SsdSizesOf(op), scratch).Run();
}

}  // namespace millrace::cpu
