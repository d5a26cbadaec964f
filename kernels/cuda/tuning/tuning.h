// Measures cuBLASLt's algorithms for the products of a plan and picks the fastest of each.
//
// Timing   Random operands (zeros draw less power, and flatter), in sets that together exceed the
//          L2 cache and are used in turn; events around launches of a graph of products, as a step
//          runs them: issued one by one, products of a few microseconds take as long as the host
//          does. The candidates that survive a first look are timed in turns, so that clocks that
//          drift meet all of them; medians decide. Another algorithm than the default must beat it
//          by more than kNoise, so that repeated tuning rarely changes its mind.
// Hot      Of the largest products, those that are then within kHotMargin of the fastest, and the
//          default, take longer turns at the clocks that the GPU keeps (hot_turns.h), and their
//          times there decide between them: a step of such products runs at the power cap, where
//          who takes fewer joules is faster. Four candidates of a product take a second or two.
// Memory   Allocates its own operands, at most as many bytes as the largest product needs plus some
//          multiples of the L2 cache; freed on return.
// Blocks   The host until everything is measured. Not during capture.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/tuning/hot_turns.h"
#include "kernels/ops/model_ops.h"
#include "kernels/ops/shape.h"
#include "kernels/ops/tuning.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

inline constexpr double kNoise = 0.01;
inline constexpr double kHotMargin = 0.1;

struct TuneOptions {
  int suggestions = 24;  // candidates per product, as the library ranks them
  int finalists = 4;     // of them, after a first look; the default is always one
  int rounds = 9;        // in which each finalist is timed once
  double round_ms = 2;   // of one timing
  // Products with hot turns, and the share of all FLOPs that each has at least. 0: none.
  int hot_products = 4;
  double hot_share = 0.05;
  HotTurnOptions hot;
  // Told of every product when it is measured, for progress output.
  std::function<void(const MatmulKey&, const TunedMatmul&)> on_measured;
};

// Entries for all ops that have a key (KeyOf, FusedKeyOf of kernels/ops/matmul_key.h); equal
// products are measured once. A fused key whose entry has no algorithm is one that is slower than
// its product and a kernel. Ops of a plan may be given as they are, duplicates and all.
TuningTable Tune(CudaDevice& device, const std::vector<MatmulOp<Shape>>& ops,
                 const TuneOptions& options);

}  // namespace millrace
