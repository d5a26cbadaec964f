// Argument structs of the kernel ops of a Mamba-2 mixer (arXiv 2405.21060): convolution and step
// sizes, the scan, the gated norm. As in model_ops.h, whose letters, dtypes and rules hold here.
//
// Letters  H heads of P channels, G groups (H % G == 0), N states of each channel, K width of the
//          convolution, C channels of the convolution (x, B and C of the scan end to end).
//          Head h reads b and c of group h / (H/G).
// Documents  As in model_ops.h: a convolution and a scan begin anew with each.
// Views    Of [B,T,...] all dims but the last may be strided: columns of the input product's rows.
// Source   state-spaces/mamba, mamba_ssm/modules/mamba2.py and ops/triton/ssd_combined.py.
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"

namespace millrace {

// u[b,t,c] = bias[c] + sum over k < K of weight[c,k] * x[b, t-(K-1)+k, c], with x zero before t = 0
//            (weight[c,K-1] is the current position's), added in order of k;
// out[b,t,c] = silu(u[b,t,c]).
// dt[b,t,h] = clamp(softplus(dt_raw[b,t,h] + dt_bias[h]), dt_min, dt_max), softplus(v) =
//             log(1 + e^v), and v itself above 20.
// x, out any [B,T,C]; dt_raw any [B,T,H]; weight any [C,K], dense; bias any [C]; dt_bias any [H];
// dt f32 [B,T,H], dense.
struct MambaConvAttrs {
  float dt_min = 0, dt_max = 0;  // 0 <= dt_min < dt_max; infinity is allowed
  bool operator==(const MambaConvAttrs&) const = default;
};
template <class V>
struct MambaConvOp : MambaConvAttrs {
  using Attrs = MambaConvAttrs;
  static constexpr const char* kName = "mamba_conv";
  V x, documents, dt_raw, weight, bias, dt_bias, out, dt;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.documents, Access::kRead, "documents");
    f(s.dt_raw, Access::kRead, "dt_raw");
    f(s.weight, Access::kRead, "weight");
    f(s.bias, Access::kRead, "bias");
    f(s.dt_bias, Access::kRead, "dt_bias");
    f(s.out, Access::kWrite, "out");
    f(s.dt, Access::kWrite, "dt");
  }
};

// Gradient of MambaConvOp; u is formed again. With d_u = d_out * silu'(u):
// d_x[b,t,c] = sum over k < K of weight[c,k] * d_u[b, t+(K-1)-k, c], d_u zero from T on;
// d_weight[c,k] (=|+=) sum over b,t of d_u[b,t,c] * x[b, t-(K-1)+k, c];
// d_bias[c] (=|+=) sum over b,t of d_u[b,t,c].
// d_dt_raw = d_dt * sigmoid(dt_raw + dt_bias), 0 where dt was clamped; d_dt_bias[h] (=|+=) its sum
// over b,t, before it is rounded.
// d_out any [B,T,C]; d_dt f32 [B,T,H], dense; d_x, d_dt_raw as x, dt_raw; d_weight, d_bias,
// d_dt_bias any. Sums over rows are in a fixed order and reach their destination in one rounding.
struct MambaConvGradAttrs {
  float dt_min = 0, dt_max = 0;
  Update weight_update = Update::kOverwrite;
  Update bias_update = Update::kOverwrite;
  Update dt_bias_update = Update::kOverwrite;
  bool operator==(const MambaConvGradAttrs&) const = default;
};
template <class V>
struct MambaConvGradOp : MambaConvGradAttrs {
  using Attrs = MambaConvGradAttrs;
  static constexpr const char* kName = "mamba_conv_grad";
  V x, documents, dt_raw, weight, bias, dt_bias, d_out, d_dt, d_x, d_dt_raw, d_weight, d_bias,
      d_dt_bias, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.documents, Access::kRead, "documents");
    f(s.dt_raw, Access::kRead, "dt_raw");
    f(s.weight, Access::kRead, "weight");
    f(s.bias, Access::kRead, "bias");
    f(s.dt_bias, Access::kRead, "dt_bias");
    f(s.d_out, Access::kRead, "d_out");
    f(s.d_dt, Access::kRead, "d_dt");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.d_dt_raw, Access::kWrite, "d_dt_raw");
    f(s.d_weight, Updated{s.weight_update}, "d_weight");
    f(s.d_bias, Updated{s.bias_update}, "d_bias");
    f(s.d_dt_bias, Updated{s.dt_bias_update}, "d_dt_bias");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// The scan of a selective state space. Per batch row and head, with A = -exp(a_log[h]) and a state
// s [P,N] that is zero before t = 0:
// s <- exp(dt[t] * A) * s + dt[t] * x[t,:] (outer) b[t,:];
// out[t,p] = sum over n of s[p,n] * c[t,n] + d[h] * x[t,p].
// x, out any [B,T,H,P]; b, c any [B,T,G,N]; dt f32 [B,T,H], dense; a_log, d any [H].
// Order     By chunks of `chunk` positions, the last one (of each document) shorter: products of
//           matrices within a chunk, a state in f32 from chunk to chunk. Bits depend on the chunk.
// Rounding  f32; on CUDA, where x, b, c and out are bf16 and shapes allow (cuda::SsdOnTensorCores),
//           what enters a product is rounded to bf16: dt*x, the decayed products of c and b, and
//           copies of the states. Sums, decays and the states themselves stay f32.
struct SsdScanAttrs {
  int64_t chunk = 128;
  bool operator==(const SsdScanAttrs&) const = default;
};
template <class V>
struct SsdScanOp : SsdScanAttrs {
  using Attrs = SsdScanAttrs;
  static constexpr const char* kName = "ssd_scan";
  V x, documents, b, c, dt, a_log, d, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.documents, Access::kRead, "documents");
    f(s.b, Access::kRead, "b");
    f(s.c, Access::kRead, "c");
    f(s.dt, Access::kRead, "dt");
    f(s.a_log, Access::kRead, "a_log");
    f(s.d, Access::kRead, "d");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// Gradient of SsdScanOp; the states are formed again. Shapes as forward: d_x [B,T,H,P], d_b, d_c
// [B,T,G,N] (sums over a group's heads, in order), d_dt f32 [B,T,H] dense;
// d_a_log[h], d_d[h] (=|+=) sums over b, t (and p), in a fixed order, of the gradients of a_log
// and d, in one rounding. The gradient of a decay is the sum over the pairs of positions that it
// lies between; on tensor cores the difference of two f32 sums of the chunk's pairs.
struct SsdScanGradAttrs {
  int64_t chunk = 128;
  Update a_log_update = Update::kOverwrite;
  Update d_update = Update::kOverwrite;
  bool operator==(const SsdScanGradAttrs&) const = default;
};
template <class V>
struct SsdScanGradOp : SsdScanGradAttrs {
  using Attrs = SsdScanGradAttrs;
  static constexpr const char* kName = "ssd_scan_grad";
  V x, documents, b, c, dt, a_log, d, d_out, d_x, d_b, d_c, d_dt, d_a_log, d_d, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.documents, Access::kRead, "documents");
    f(s.b, Access::kRead, "b");
    f(s.c, Access::kRead, "c");
    f(s.dt, Access::kRead, "dt");
    f(s.a_log, Access::kRead, "a_log");
    f(s.d, Access::kRead, "d");
    f(s.d_out, Access::kRead, "d_out");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.d_b, Access::kWrite, "d_b");
    f(s.d_c, Access::kWrite, "d_c");
    f(s.d_dt, Access::kWrite, "d_dt");
    f(s.d_a_log, Updated{s.a_log_update}, "d_a_log");
    f(s.d_d, Updated{s.d_update}, "d_d");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// RMS norm, per group of C/G columns, of a gated value: with v = y * silu(z),
// out[r,c] = v * rstd[r,g] * weight[c], g = c / (C/G), rstd[r,g] = 1 / sqrt(mean over the group of
// v^2 + eps).
// y, z, out any [R,C]; weight any [C]; rstd f32 [R,G], dense. out may be y.
struct GatedNormAttrs {
  float eps = 1e-5f;
  bool operator==(const GatedNormAttrs&) const = default;
};
template <class V>
struct GatedNormOp : GatedNormAttrs {
  using Attrs = GatedNormAttrs;
  static constexpr const char* kName = "gated_norm";
  V y, z, weight, out, rstd;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.y, Access::kRead, "y");
    f(s.z, Access::kRead, "z");
    f(s.weight, Access::kRead, "weight");
    f(s.out, Access::kWrite, "out");
    f(s.rstd, Access::kWrite, "rstd");
  }
};

// Gradient of GatedNormOp. With vhat = v * rstd and g = d_out * weight:
// d_v = (g - vhat * mean over the group of g*vhat) * rstd; d_y = d_v * silu(z); d_z = d_v * y *
// silu'(z); d_weight[c] (=|+=) sum over r of d_out*vhat.
// rest any [R,E], optional: set to zero. (z is a part of wider rows, and d_z, rest together are
// all of their gradient's: whoever else reads those rows adds what it has.)
// d_out, d_y, d_z any [R,C]; d_weight any. d_y may be d_out.
struct GatedNormGradAttrs {
  Update weight_update = Update::kOverwrite;
  bool operator==(const GatedNormGradAttrs&) const = default;
};
template <class V>
struct GatedNormGradOp : GatedNormGradAttrs {
  using Attrs = GatedNormGradAttrs;
  static constexpr const char* kName = "gated_norm_grad";
  V d_out, y, z, weight, rstd, d_y, d_z, rest, d_weight, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.d_out, Access::kRead, "d_out");
    f(s.y, Access::kRead, "y");
    f(s.z, Access::kRead, "z");
    f(s.weight, Access::kRead, "weight");
    f(s.rstd, Access::kRead, "rstd");
    f(s.d_y, Access::kWrite, "d_y");
    f(s.d_z, Access::kWrite, "d_z");
    f(s.rest, Access::kWrite, "rest");
    f(s.d_weight, Updated{s.weight_update}, "d_weight");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

}  // namespace millrace
