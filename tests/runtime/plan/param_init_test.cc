#include "runtime/plan/layout/param_init.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/base/philox.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

ParamSpec Param(std::string name, std::vector<int64_t> dims, int64_t padded_rows, InitKind init,
                double std = 0.02) {
  ParamSpec param;
  param.name = std::move(name);
  param.dims = std::move(dims);
  param.padded_rows = padded_rows;
  param.init = init;
  param.init_std = std;
  return param;
}

ModelSpec Model() {
  ModelSpec spec;
  spec.family = "test";
  ParamSpec norm = Param("h.0.norm", {37}, 37, InitKind::kOnes);
  norm.kind = ParamKind::kNorm;
  spec.units.push_back({"embed", {Param("wte", {13, 11}, 17, InitKind::kNormal)}});
  spec.units.push_back({"h.0",
                        {norm, Param("h.0.w", {29, 23}, 29, InitKind::kNormal, 0.5),
                         Param("h.0.b", {29}, 29, InitKind::kZeros)}});
  return spec;
}

// All shards of a flat, end to end.
std::vector<float> Fill(const ShardLayout& layout, FlatId id, uint64_t seed) {
  const FlatParam& flat = layout.flat(id);
  std::vector<float> full(static_cast<size_t>(flat.padded_numel),
                          NAN);  // an element left unwritten shows
  for (int r = 0; r < layout.mesh.Size(Axis::kShard); ++r)
    FillShard(layout, id, r, seed, full.data() + r * flat.shard_numel);
  return full;
}

std::map<std::string, std::vector<float>> LogicalValues(const ShardLayout& layout, uint64_t seed) {
  std::map<std::string, std::vector<float>> values;
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const std::vector<float> full = Fill(layout, FlatId{static_cast<int32_t>(f)}, seed);
    for (const Range& gap : layout.flats[f].gaps)
      for (int64_t i = gap.begin; i < gap.end; ++i)
        if (std::bit_cast<uint32_t>(full[static_cast<size_t>(i)]) != 0)
          FAIL("gap element " << i << " of " << layout.flats[f].name << " is "
                              << full[static_cast<size_t>(i)]);
    for (const ParamId id : layout.flats[f].params) {
      const ParamPlacement& p = layout.param(id);
      values[p.spec.name].assign(full.begin() + p.begin, full.begin() + p.begin + p.spec.numel());
    }
  }
  return values;
}

TEST_CASE("the model is the same at every world size, precision and padding", "[plan][init]") {
  const ModelSpec spec = Model();
  const std::map<std::string, std::vector<float>> base = LogicalValues(PlanShards(spec, {}, {}), 7);
  for (int shard = 1; shard <= 4; ++shard) {
    CAPTURE(shard);
    PrecisionPolicy bf16;
    bf16.compute = DType::kBF16;
    REQUIRE(LogicalValues(PlanShards(spec, {1, shard}, {}), 7) == base);
    REQUIRE(LogicalValues(PlanShards(spec, {2, shard}, bf16), 7) == base);
  }
  ModelSpec padded = spec;
  padded.units[0].params[0].padded_rows = 64;
  REQUIRE(LogicalValues(PlanShards(padded, {1, 3}, {}), 7) == base);

  for (const auto& [name, values] : base)
    for (size_t i = 0; i < values.size(); ++i) {
      CAPTURE(name, i);
      for (const UnitSpec& unit : spec.units)
        for (const ParamSpec& param : unit.params)
          if (param.name == name)
            REQUIRE(InitialValue(param, 7, static_cast<int64_t>(i)) == values[i]);
    }
  REQUIRE(base.at("h.0.norm") == std::vector<float>(37, 1.0f));
  REQUIRE(base.at("h.0.b") == std::vector<float>(29, 0.0f));
}

TEST_CASE("the values depend on the seed and on the parameter's name", "[plan][init]") {
  const ParamSpec a = Param("a", {64}, 64, InitKind::kNormal),
                  b = Param("b", {64}, 64, InitKind::kNormal);
  int equal_names = 0, equal_seeds = 0, equal_indices = 0;
  for (int64_t i = 0; i < 63; ++i) {
    equal_names += InitialValue(a, 1, i) == InitialValue(b, 1, i);
    equal_seeds += InitialValue(a, 1, i) == InitialValue(a, uint64_t{1} + (uint64_t{1} << 32), i);
    equal_indices += InitialValue(a, 1, i) == InitialValue(a, 1, i + 1);
  }
  // Two independent f32 normals agree with probability below 1e-6; 189 pairs below
  // 2e-4, and this seed is fixed.
  REQUIRE(equal_names == 0);
  REQUIRE(equal_seeds == 0);
  REQUIRE(equal_indices == 0);
}

// Rates by the head's number; steps between 0.001 and 0.1, as many on either side of 0.01.
TEST_CASE("decay rates and steps of a scan begin as its papers' code has them", "[plan][init]") {
  const ParamSpec rates = Param("a", {9}, 9, InitKind::kLogIndex),
                  steps = Param("dt", {4000}, 4000, InitKind::kStepBias);
  int small = 0;
  for (int64_t i = 0; i < 9; ++i)
    CHECK(InitialValue(rates, 1, i) == static_cast<float>(std::log(static_cast<double>(i + 1))));
  for (int64_t i = 0; i < 4000; ++i) {
    const double step = std::log1p(std::exp(static_cast<double>(InitialValue(steps, 1, i))));
    REQUIRE(step > 1e-3 * (1 - 1e-6));
    REQUIRE(step < 0.1 * (1 + 1e-6));
    small += step < 0.01;
  }
  CHECK(std::abs(small - 2000) < 5 * std::sqrt(4000.0) / 2);  // five standard errors
}

// n independent standard normals: each statistic below is compared with its standard error times 5
// (one-in-a-million each; the seed is fixed).
TEST_CASE("normal parameters have the moments and the tails of the normal distribution",
          "[plan][init]") {
  const double std = 0.02;
  const int64_t n = 200'000;
  const ParamSpec param = Param("w", {n}, n, InitKind::kNormal, std);
  double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0, lag1 = 0, lag2 = 0;
  double previous = 0, before = 0;
  int64_t beyond[5] = {};
  for (int64_t i = 0; i < n; ++i) {
    const double z = InitialValue(param, 3, i) / std;
    sum += z;
    sum2 += z * z;
    sum3 += z * z * z;
    sum4 += z * z * z * z;
    lag1 += z * previous;  // elements 2k and 2k+1 share a Philox block
    lag2 += z * before;
    before = previous;
    previous = z;
    for (int k = 1; k <= 4; ++k) beyond[k] += std::abs(z) > k;
  }
  const double root_n = std::sqrt(double(n));
  CHECK(std::abs(sum / n) < 5 / root_n);                         // Var z = 1
  CHECK(std::abs(sum2 / n - 1) < 5 * std::sqrt(2.0) / root_n);   // Var z^2 = 3 - 1
  CHECK(std::abs(sum3 / n) < 5 * std::sqrt(15.0) / root_n);      // Var z^3 = 15
  CHECK(std::abs(sum4 / n - 3) < 5 * std::sqrt(96.0) / root_n);  // Var z^4 = 105 - 9
  CHECK(std::abs(lag1 / n) < 5 / root_n);                        // Var z z' = 1
  CHECK(std::abs(lag2 / n) < 5 / root_n);
  for (int k = 1; k <= 4; ++k) {
    CAPTURE(k);
    const double p = std::erfc(k / std::sqrt(2.0));  // P(|z| > k); the count is binomial
    CHECK(std::abs(double(beyond[k]) - n * p) < 5 * std::sqrt(n * p * (1 - p)));
  }
}

TEST_CASE("a shard rank outside the mesh is refused", "[plan][init]") {
  const ShardLayout layout = PlanShards(Model(), {1, 2}, {});
  std::vector<float> shard(static_cast<size_t>(layout.flats[0].shard_numel));
  REQUIRE_THROWS_AS(FillShard(layout, FlatId{0}, 2, 1, shard.data()), Error);
  REQUIRE_THROWS_AS(FillShard(layout, FlatId{0}, -1, 1, shard.data()), Error);
}

TEST_CASE(
    "a parameter large enough to be filled by several threads has the values of its elements") {
  ModelSpec spec;
  spec.family = "test";
  spec.units.push_back({"embed", {Param("wte", {1031, 1021}, 1040, InitKind::kNormal)}});
  const ShardLayout layout = PlanShards(spec, {1, 1}, {});
  const std::vector<float> full = Fill(layout, FlatId{0}, 5);
  const ParamSpec& param = spec.units[0].params[0];
  for (int64_t i = 0; i < param.numel(); ++i)
    if (full[static_cast<size_t>(i)] !=
        static_cast<float>(param.init_std *
                           PhiloxNormal(5, Fnv1a64(param.name), static_cast<uint64_t>(i))))
      FAIL("element " << i << " is " << full[static_cast<size_t>(i)]);
}

// Rooms that end inside of a pair of normal values, inside of a gap, and where a run begins; of a
// split parameter, runs that are shorter than a room and than a thread's part.
TEST_CASE("a shard is the same through any room", "[plan][init]") {
  ModelSpec spec = Model();
  spec.units.push_back({"h.1", {Param("h.1.w", {1031, 1022}, 1031, InitKind::kNormal)}});
  spec.units.back().params[0].splits = {{Axis::kTensor, 1, {}}};
  const ShardLayout layout = PlanShards(spec, Mesh(1, 2).With(Axis::kTensor, 2), {});
  for (size_t f = 0; f < layout.flats.size(); ++f)
    for (int rank = 0; rank < layout.mesh.world(); ++rank) {
      const FlatId flat{static_cast<int32_t>(f)};
      const auto numel = static_cast<size_t>(layout.flats[f].shard_numel);
      std::vector<float> expected(numel, 0.0f);
      ForEachRun(layout, flat, rank, [&](const ParamRun& run) {
        for (int64_t i = 0; i < run.numel; ++i)
          expected[static_cast<size_t>(run.local + i)] =
              InitialValue(layout.param(run.param).spec, 7, run.logical + i);
      });
      for (const size_t size : {size_t{1}, size_t{7}, size_t{64}, numel - 1, numel, numel + 1}) {
        if (numel > 10'000 && size < 64) continue;
        CAPTURE(f, rank, numel, size);
        std::vector<float> room(size, NAN), shard;
        FillShard(layout, flat, rank, 7, room, [&](int64_t first, std::span<const float> values) {
          REQUIRE(first == std::ssize(shard));
          shard.insert(shard.end(), values.begin(), values.end());
          std::fill(room.begin(), room.end(), NAN);
        });
        REQUIRE(shard == expected);
      }
    }
  std::span<float> none;
  REQUIRE_THROWS_AS(FillShard(layout, FlatId{0}, 0, 7, none, [](int64_t, auto) {}), Error);
}

}  // namespace
}  // namespace millrace
