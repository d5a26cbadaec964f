#include "runtime/plan/cost/kernel_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/base/arithmetic.h"

namespace millrace {
namespace {

constexpr std::array<int64_t, 8> kCuts = {1, 2, 3, 4, 6, 8, 16, 32};
constexpr int64_t kShortestCut = 256;  // k of a part

// Of `products` of this shape at once. `busy`: of the units' time, the share that has a tile.
struct ByRule {
  double seconds = std::numeric_limits<double>::infinity(), busy = 1;
};
ByRule RuleOf(const Machine& machine, DType dtype, int64_t m, int64_t n, int64_t k,
              int64_t products = 1) {
  const double rate = machine.gemm(dtype), start = machine.gemm_k_start;
  const auto area =
      2.0 * static_cast<double>(products) * static_cast<double>(m) * static_cast<double>(n);
  // Tiles are of the units that multiply bf16 and, where a machine says how fast, FP8.
  const bool by_tiles = dtype == DType::kBF16 || (IsFloat8(dtype) && machine.gemm_fp8 > 0);
  if (machine.gemm_units == 0 || machine.gemm_tiles.empty() || !by_tiles)
    return {area * (static_cast<double>(k) + start) / rate};
  ByRule best;
  const int64_t units = machine.gemm_units;
  for (const GemmTile& tile : machine.gemm_tiles) {
    const int64_t tiles = products * CeilDiv(m, tile.m) * CeilDiv(n, tile.n);
    for (const int64_t cut : kCuts) {
      if (cut > 1 && (products > 1 || k / cut < kShortestCut || tiles * cut > 2 * units)) break;
      const double waves = static_cast<double>(CeilDiv(tiles * cut, units) * units);
      double seconds = waves * 2 * static_cast<double>(tile.m * tile.n) *
                       (static_cast<double>(k) / static_cast<double>(cut) + start) /
                       (rate * tile.efficiency);
      if (cut > 1) seconds += 4 * static_cast<double>(cut) * area / machine.memory;
      if (seconds < best.seconds) best = {seconds, static_cast<double>(tiles * cut) / waves};
    }
  }
  return best;
}

}  // namespace

double ProductSeconds(const Machine& machine, DType dtype, int64_t m, int64_t n, int64_t k) {
  const double by_rule = RuleOf(machine, dtype, m, n, k).seconds;
  double sum = 0, weights = 0;
  for (const GemmShape& shape : machine.gemm_shapes) {
    if (shape.dtype != dtype) continue;
    const auto apart = [](int64_t a, int64_t b) {
      return std::log2(static_cast<double>(a) / static_cast<double>(b));
    };
    const double dm = apart(m, shape.m), dn = apart(n, shape.n), dk = apart(k, shape.k);
    const double square = dm * dm + dn * dn + dk * dk;
    const double measured = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                            static_cast<double>(shape.k) / shape.flops;
    if (square == 0) return measured;
    sum += std::log(measured / RuleOf(machine, dtype, shape.m, shape.n, shape.k).seconds) / square;
    weights += 1 / square;
  }
  return weights > 0 ? by_rule * std::exp(sum / weights) : by_rule;
}

double ProductBusy(const Machine& machine, DType dtype, int64_t m, int64_t n, int64_t k) {
  return RuleOf(machine, dtype, m, n, k).busy;
}

double GroupedSeconds(const Machine& machine, DType dtype, int64_t products, int64_t m, int64_t n,
                      int64_t k) {
  return RuleOf(machine, dtype, m, n, k, products).seconds;
}

double AttentionFlops(const Machine& machine, int64_t length, int64_t head_dim, DType operands,
                      Pass pass) {
  const double gemm = machine.gemm(operands);
  const auto rate = [&](const AttentionRate& r) {
    return std::min(pass == Pass::kBackward ? r.backward : r.forward, gemm);
  };
  const AttentionRate* below = nullptr;  // the longest length reached, else the shortest
  const AttentionRate* above = nullptr;  // the next one of its class
  for (const AttentionRate& r : machine.attention) {
    const bool wider = below != nullptr && r.head_dim > below->head_dim;
    if (wider && below->head_dim >= head_dim) break;
    if (below == nullptr || wider || r.length <= length) {
      below = &r;
      above = nullptr;
    } else if (above == nullptr) {
      above = &r;
    }
  }
  if (below == nullptr) return gemm;
  if (above == nullptr || length <= below->length) return rate(*below);
  const double part =
      std::log(static_cast<double>(length) / static_cast<double>(below->length)) /
      std::log(static_cast<double>(above->length) / static_cast<double>(below->length));
  return rate(*below) + part * (rate(*above) - rate(*below));
}

double TrainingAttentionFlops(const Machine& machine, const CappedShape& shape, DType operands) {
  const auto rate = [&](Pass pass) {
    return AttentionFlops(machine, shape.length, shape.head_dim, operands, pass);
  };
  // 2 and 5 products.
  return 7 / (2 / rate(Pass::kForward) + 5 / rate(Pass::kBackward));
}

}  // namespace millrace
