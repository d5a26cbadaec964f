// Operands of products in FP8: payloads of 8 bits (runtime/base/float8.h) and f32 scales, by which
// payloads are multiplied to give values.
//
// Blocks   A matrix has scales [Sr, Sc], each for a block of it. How long blocks are along a dim of
//          n elements follows from the number S of scales along it: n where S is 1, 1 where S is n,
//          and else kScaleBlock, the last block being what is left: S = CeilDiv(n, kScaleBlock), or
//          that rounded up to a multiple of kScaleMultiple: scales that no block has are 1.
// Scale    Of a block whose largest finite magnitude is m: m / the format's largest number, rounded
//          to f32 (kExact), or the smallest power of two that is not below it (kPowerOfTwo). 1
//          where m is 0; at least kLeastScale, below which products of payload and scale were
//          subnormal: numbers that small lose bits.
// Payload  x / scale, rounded to f32, rounded to the format as float8.h says. A finite value
//          saturates; NaN and infinities become NaN and leave the scale alone, so that each product
//          that they enter is NaN.
// Magnitude  f32 [1], optional, where all elements share a scale: x's largest finite magnitude,
//          which the op that wrote x has formed (model_ops.h). So x is read once.
// Activation  What is quantized is the activation of x (ActivationOp, model_ops.h), rounded to x's
//          dtype as ActivationOp would store it: it is neither written nor read.
// Turned   A second form of x from the same reading of it, for products that sum along the other
//          dim. Without scales of its own it has those of `out`.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/ops/access.h"
#include "kernels/ops/fp8_blocks.h"
#include "runtime/base/policies.h"

namespace millrace {

// Elements per scale along a dim of n elements that has so many scales.
int64_t ScaleBlockOf(int64_t n, int64_t scales);

enum class ScaleRounding { kExact, kPowerOfTwo };

// out, scales (and turned, turned_scales) from x [R,C] any, one stride of which is 1; by a gated
// activation x is [R,2C].
// out and turned e4m3 or e5m2 [R,C], of one dtype, one stride of which is 1; scales f32 [Sr,Sc],
// strided.
struct QuantizeAttrs {
  ScaleRounding scale_rounding = ScaleRounding::kExact;
  std::optional<ActivationKind> activation = {};
  bool operator==(const QuantizeAttrs&) const = default;
};
template <class V>
struct QuantizeOp : QuantizeAttrs {
  using Attrs = QuantizeAttrs;
  static constexpr const char* kName = "quantize";
  V x, magnitude, out, scales, turned, turned_scales;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.magnitude, Access::kRead, "magnitude");
    f(s.out, Access::kWrite, "out");
    f(s.scales, Access::kWrite, "scales");
    f(s.turned, Access::kWrite, "turned");
    f(s.turned_scales, Access::kWrite, "turned_scales");
  }
};

// The turned form of a matrix that has come quantized, a gathered weight: turned = payload and
// turned_scales = scales, element by element, in other places.
// payload, turned e4m3 [R,C], the one with rows, the other with columns of neighbours; scales,
// turned_scales f32 [Sr,Sc] of blocks of one size, strided, both or neither there. Of scales that
// no block has (kScaleMultiple) the turned ones may have others in number; they are 1.
template <class V>
struct TurnOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "turn";
  V payload, scales, turned, turned_scales;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.payload, Access::kRead, "payload");
    f(s.scales, Access::kRead, "scales");
    f(s.turned, Access::kWrite, "turned");
    f(s.turned_scales, Access::kWrite, "turned_scales");
  }
};

}  // namespace millrace
