#include "tests/kernels/support/ssd_reference.h"

#include <algorithm>
#include <cmath>

namespace millrace::test {
namespace {

Tracked Of(double value) { return {value, std::abs(value)}; }

class Recurrence {
 public:
  explicit Recurrence(const SsdProblem& p) : p_(p) {
    result_.out.resize(p.x.size());
    result_.d_x.resize(p.x.size());
    result_.d_b.resize(p.b.size());
    result_.d_c.resize(p.c.size());
    result_.d_dt.resize(p.dt.size());
    result_.d_decay.resize(p.dt.size());
    result_.d_a_log.resize(p.a_log.size());
    result_.d_d.resize(p.d.size());
  }

  SsdReference Run() && {
    for (int64_t b = 0; b < p_.batch; ++b)
      for (int64_t h = 0; h < p_.heads; ++h) {
        Forward(b, h);
        Backward(b, h);
      }
    return std::move(result_);
  }

 private:
  size_t X(int64_t b, int64_t t, int64_t h, int64_t p) const {
    return static_cast<size_t>(((b * p_.length + t) * p_.heads + h) * p_.channels + p);
  }
  size_t B(int64_t b, int64_t t, int64_t h, int64_t n) const {
    const int64_t group = h / (p_.heads / p_.groups);
    return static_cast<size_t>(((b * p_.length + t) * p_.groups + group) * p_.states + n);
  }
  size_t Dt(int64_t b, int64_t t, int64_t h) const {
    return static_cast<size_t>((b * p_.length + t) * p_.heads + h);
  }
  size_t S(int64_t t, int64_t p, int64_t n) const {  // the state behind position t - 1
    return static_cast<size_t>((t * p_.channels + p) * p_.states + n);
  }
  double A(int64_t h) const { return -std::exp(p_.a_log[static_cast<size_t>(h)]); }

  void Forward(int64_t b, int64_t h) {
    states_.assign(S(p_.length + 1, 0, 0), {});
    double decay = 0;
    for (int64_t t = 0; t < p_.length; ++t) {
      const double dt = p_.dt[Dt(b, t, h)];
      decay += std::abs(dt * A(h));
      for (int64_t p = 0; p < p_.channels; ++p) {
        const double x = p_.x[X(b, t, h, p)];
        Tracked y = Of(p_.d[static_cast<size_t>(h)] * x);
        for (int64_t n = 0; n < p_.states; ++n) {
          Tracked& s = states_[S(t + 1, p, n)];
          s = Of(std::exp(dt * A(h))) * states_[S(t, p, n)];
          s += Of(dt * x * p_.b[B(b, t, h, n)]);
          y += s * Of(p_.c[B(b, t, h, n)]);
        }
        result_.out[X(b, t, h, p)] = y;
      }
    }
    result_.longest_decay = std::max(result_.longest_decay, decay);
  }

  void Backward(int64_t b, int64_t h) {
    d_state_.assign(S(1, 0, 0), {});  // of the state behind position t
    for (int64_t t = p_.length - 1; t >= 0; --t) {
      const double dt = p_.dt[Dt(b, t, h)], kept = std::exp(dt * A(h));
      Tracked from_x, from_decay;
      for (int64_t p = 0; p < p_.channels; ++p) {
        const double x = p_.x[X(b, t, h, p)];
        const Tracked d_out = Of(p_.d_out[X(b, t, h, p)]);
        Tracked d_u;
        for (int64_t n = 0; n < p_.states; ++n) {
          Tracked& d_s = d_state_[S(0, p, n)];
          const Tracked b_n = Of(p_.b[B(b, t, h, n)]), c_n = Of(p_.c[B(b, t, h, n)]);
          result_.d_c[B(b, t, h, n)] += d_out * states_[S(t + 1, p, n)];
          d_s += d_out * c_n;
          d_u += d_s * b_n;
          result_.d_b[B(b, t, h, n)] += d_s * Of(dt * x);
          from_decay += d_s * states_[S(t, p, n)] * Of(kept);
          d_s = d_s * Of(kept);
        }
        from_x += d_u * Of(x);
        result_.d_x[X(b, t, h, p)] = d_u * Of(dt);
        result_.d_x[X(b, t, h, p)] += d_out * Of(p_.d[static_cast<size_t>(h)]);
        result_.d_d[static_cast<size_t>(h)] += d_out * Of(x);
      }
      Tracked& d_decay = result_.d_decay[Dt(b, t, h)];
      d_decay = from_decay * Of(A(h));
      result_.d_dt[Dt(b, t, h)] = from_x;
      result_.d_dt[Dt(b, t, h)] += d_decay;
      result_.d_a_log[static_cast<size_t>(h)] += d_decay * Of(dt);
    }
  }

  const SsdProblem& p_;
  SsdReference result_;
  std::vector<Tracked> states_, d_state_;
};

}  // namespace

SsdReference SsdByRecurrence(const SsdProblem& problem) { return Recurrence(problem).Run(); }

}  // namespace millrace::test
