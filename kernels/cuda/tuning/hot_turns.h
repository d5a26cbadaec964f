// Candidates of a tuning as a long step runs them: each alone, back to back, until the GPU has the
// clocks that its power allows and the energy counter, which moves every 20 to 100 ms, tells what
// it takes. There is no CUDA in here: any device that runs graphs serves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/ops/matmul_key.h"
#include "kernels/ops/model_ops.h"
#include "kernels/ops/shape.h"
#include "runtime/base/device.h"
#include "runtime/base/nvml.h"

namespace millrace {

// The products that are worth hot turns, of which each candidate takes some tenths of a second: the
// `most` that have the most FLOPs of all `ops`, equal products together, but none with a smaller
// share than `least`. With their fused forms.
std::set<MatmulKey> LargestProducts(const std::vector<MatmulOp<Shape>>& ops, int most,
                                    double least);

struct HotTurnOptions {
  double warm_seconds = 0.1;    // before the first turn
  double turn_seconds = 0.075;  // of each at least, from tick to tick of the counter; more than 0
  int turns = 2;                // of each candidate, in turn; then backwards, and so on
};

// Of one product.
struct HotResult {
  double microseconds = 0;       // by the device's clock
  std::optional<double> sm_mhz;  // median; none: the GPU does not say
  std::optional<double> millijoules;
  double off = 0;         // share by which millijoules may be off: when ticks were seen
  std::string no_joules;  // why there are none
};

class HotCandidate {
 public:
  // `graph` of so many products; outlives it.
  HotCandidate(Graph& graph, int64_t products) : graph_(&graph), products_(products) {}
  // After a turn or more.
  HotResult Result() const;

 private:
  friend class HotTurns;
  Graph* graph_;
  int64_t products_;
  // Of all turns so far.
  double timed_us_ = 0, joules_ = 0, seconds_ = 0, seconds_off_ = 0;
  int64_t timed_products_ = 0;
  std::vector<double> mhz_;
  std::string trouble_;
};

// A counter that fails once, or stands still for a second, is asked no more: then results have
// times alone.
class HotTurns {
 public:
  // All outlive it.
  HotTurns(const HotTurnOptions& options, const NvmlGpu& gpu, Device& device, Stream& stream);
  // Blocks the host until all turns are over.
  void Take(std::vector<HotCandidate>& candidates);

 private:
  void Turn(HotCandidate& candidate);
  template <class F>
  int64_t BackToBack(Graph& graph, F&& more);

  const HotTurnOptions options_;
  const NvmlGpu& gpu_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<Event> begin_, end_;
  std::vector<std::unique_ptr<Event>> done_;
  std::string trouble_;  // with the counter
};

}  // namespace millrace
