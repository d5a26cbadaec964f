#include "runtime/plan/cost/kernel_rates.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

Machine Tiled() {
  Machine m;
  m.gemm_bf16 = 1000;
  m.gemm_f32 = 10;
  m.memory = 1e12;
  m.gemm_units = 4;
  m.gemm_tiles = {{16, 16, 1}};
  return m;
}
double Seconds(const Machine& m, int64_t rows, int64_t columns, int64_t k) {
  return ProductSeconds(m, DType::kBF16, rows, columns, k);
}

TEST_CASE("full waves run at the machine's rate, a part of one as long as a whole",
          "[plan][cost]") {
  const Machine m = Tiled();
  CHECK(Seconds(m, 32, 32, 64) == Approx(2.0 * 32 * 32 * 64 / 1000));  // 4 tiles, 4 units
  CHECK(Seconds(m, 32, 64, 64) == Approx(2 * Seconds(m, 32, 32, 64)));
  CHECK(Seconds(m, 33, 32, 64) == Approx(2 * Seconds(m, 32, 32, 64)));  // 6 tiles: two waves
  CHECK(Seconds(m, 16, 16, 64) == Approx(Seconds(m, 32, 32, 64)));      // one tile, three idle
  CHECK(ProductSeconds(m, DType::kF32, 16, 16, 64) == Approx(2.0 * 16 * 16 * 64 / 10));
}

TEST_CASE("units are busy while they have a tile: the rest of a wave is idle", "[plan][cost]") {
  const Machine m = Tiled();
  const auto busy = [&](int64_t rows, int64_t columns) {
    return ProductBusy(m, DType::kBF16, rows, columns, 64);
  };
  CHECK(busy(32, 32) == 1);
  CHECK(busy(16, 16) == 0.25);
  CHECK(busy(33, 32) == 6.0 / 8);                          // 6 tiles: two waves
  CHECK(ProductBusy(m, DType::kBF16, 16, 16, 4096) == 1);  // its k is cut
  Machine whole = m;
  whole.gemm_units = 0;
  CHECK(ProductBusy(whole, DType::kBF16, 16, 16, 64) == 1);
}

TEST_CASE("attention of a training step has the rate of 2 and 5 products", "[plan][cost]") {
  Machine m;
  m.gemm_bf16 = 1e6;
  m.attention = {{64, 4096, 20, 10}, {128, 8192, 40, 30}};
  CHECK(TrainingAttentionFlops(m, kCappedAttention, DType::kBF16) ==
        Approx(7 / (2 / 20. + 5 / 10.)));
  CHECK(TrainingAttentionFlops(m, kCappedWideAttention, DType::kBF16) ==
        Approx(7 / (2 / 40. + 5 / 30.)));
}

TEST_CASE("FP8 is cut into tiles where a machine says how fast it is", "[plan][cost]") {
  Machine m = Tiled();
  const auto seconds = [&] { return ProductSeconds(m, DType::kE4M3, 33, 32, 64); };
  CHECK(seconds() == Approx(2.0 * 33 * 32 * 64 / 10));  // as f32
  m.gemm_fp8 = 1900;
  CHECK(seconds() == Approx(2 * 2.0 * 32 * 32 * 64 / 1900));  // 6 tiles, 4 units
}

TEST_CASE("a tile's start counts as so much more k", "[plan][cost]") {
  Machine m = Tiled();
  m.gemm_k_start = 32;
  CHECK(Seconds(m, 32, 32, 64) == Approx(2.0 * 32 * 32 * (64 + 32) / 1000));
  m.gemm_units = 0;
  CHECK(Seconds(m, 32, 32, 64) == Approx(2.0 * 32 * 32 * (64 + 32) / 1000));
}

TEST_CASE("the best of the tiles, and of the cuts of k that busy idle units", "[plan][cost]") {
  Machine m = Tiled();
  m.gemm_tiles.push_back({8, 16, 0.8});
  // 2 tiles of 16 x 16 leave two units idle, 4 of 8 x 16 none.
  CHECK(Seconds(m, 16, 32, 64) == Approx(2.0 * 16 * 32 * 64 / (1000 * 0.8)));
  CHECK(Seconds(m, 32, 32, 64) == Approx(2.0 * 32 * 32 * 64 / 1000));
  m = Tiled();
  const double whole = 2.0 * 32 * 32 * 4096 / 1000;  // one tile on one of four units
  CHECK(Seconds(m, 16, 16, 4096) == Approx(whole / 4).epsilon(1e-6));
  CHECK(Seconds(m, 16, 16, 300) == Approx(2.0 * 32 * 32 * 300 / 1000));  // too short to cut
  m.memory = 100;  // four parts of 16 x 16 f32, written and read
  CHECK(Seconds(m, 16, 16, 4096) == Approx(whole / 4 + 4 * 2.0 * 4 * 16 * 16 / 100));
}

TEST_CASE("products by experts share the units, and each has tiles of its own", "[plan][cost]") {
  Machine m = Tiled();
  const auto seconds = [&](int64_t products, int64_t rows, int64_t columns, int64_t k) {
    return GroupedSeconds(m, DType::kBF16, products, rows, columns, k);
  };
  const double wave = 4 * 2.0 * 16 * 16 * 64 / 1000;
  CHECK(seconds(4, 16, 16, 64) == Approx(wave));      // a tile each
  CHECK(seconds(5, 16, 16, 64) == Approx(2 * wave));  // the fifth waits
  CHECK(seconds(4, 17, 16, 64) == Approx(2 * wave));  // two tiles each, of 17 rows
  // As one product of as many rows, where these fill tiles; k is not cut for idle units.
  CHECK(seconds(3, 32, 48, 64) == Approx(Seconds(m, 96, 48, 64)));
  CHECK(seconds(2, 16, 16, 4096) == Approx(64 * wave));
  m.gemm_shapes = {{DType::kBF16, 96, 48, 64, 1}};
  CHECK(seconds(4, 16, 16, 64) == Approx(wave));
  CHECK(GroupedSeconds(m, DType::kF32, 3, 5, 7, 11) == Approx(3 * 2.0 * 5 * 7 * 11 / 10));
}

TEST_CASE("a shape that was timed is its time, and corrects those near it", "[plan][cost]") {
  Machine m = Tiled();
  m.gemm_shapes = {{DType::kBF16, 32, 32, 64, 500}};  // half of what the rule says
  CHECK(Seconds(m, 32, 32, 64) == Approx(2.0 * 32 * 32 * 64 / 500));
  CHECK(Seconds(m, 64, 64, 64) == Approx(2.0 * 64 * 64 * 64 / 500));
  m.gemm_shapes.push_back({DType::kBF16, 1024, 1024, 1024, 1000});  // as the rule says
  const double near = Seconds(m, 64, 64, 64) * 1000 / (2.0 * 64 * 64 * 64);
  CHECK(near > 1.8);  // distances 2 and 4^2 * 3 in octaves squared: mostly the near one
  CHECK(near < 2);
  CHECK(ProductSeconds(m, DType::kF32, 32, 32, 64) == Approx(2.0 * 32 * 32 * 64 / 10));
}

}  // namespace
}  // namespace millrace
