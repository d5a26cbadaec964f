#include "runtime/plan/layout/param_runs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/plan/layout/param_init.h"
#include "tests/support/split_models.h"

namespace millrace {
namespace {

// Who holds a coordinate of one dim, and as which of its own: element by element from the
// definition of Split.
struct Held {
  int place = 0;  // over the axes of the split
  int64_t local = 0;
};
Held HolderOf(const Split& split, int64_t dim, int ranks, int64_t at) {
  const std::vector<int64_t> whole = {dim};
  int64_t before = 0;  // coordinates that each rank has of earlier parts
  for (const int64_t part : split.parts.empty() ? whole : split.parts) {
    const int64_t piece = part / ranks;
    if (at < part) return {static_cast<int>(at / piece), before + at % piece};
    at -= part;
    before += piece;
  }
  FAIL("coordinate beyond the parts");
  return {};
}

// Whether `rank` holds logical element `index`, and where in its shard: -1 where it does not.
int64_t PlaceOf(const ShardLayout& layout, const ParamPlacement& param, int rank, int64_t index) {
  std::vector<int64_t> at(param.spec.dims.size());
  for (size_t d = at.size(); d-- > 0; index /= param.spec.dims[d])
    at[d] = index % param.spec.dims[d];
  std::vector<int64_t> dims = param.spec.dims;
  for (const Split& split : param.spec.splits) {
    const auto d = static_cast<size_t>(split.dim);
    const int ranks = layout.mesh.Size(split.axes);
    const Held held = HolderOf(split, dims[d], ranks, at[d]);
    if (held.place != layout.mesh.Index(rank, split.axes)) return -1;
    at[d] = held.local;
    dims[d] /= ranks;
  }
  int64_t local = 0;
  for (size_t d = 0; d < at.size(); ++d) local = local * dims[d] + at[d];
  const FlatParam& flat = layout.flat(param.flat);
  const int64_t place = param.begin + local;
  if (place / flat.shard_numel != layout.mesh.Index(rank, flat.shard)) return -1;
  return place % flat.shard_numel;
}

// Of a rank's shard of a flat: (parameter, logical index) by element; (-1, 0) in gaps.
using Content = std::vector<std::pair<int32_t, int64_t>>;

Content ContentByRuns(const ShardLayout& layout, FlatId flat, int rank) {
  Content content(static_cast<size_t>(layout.flat(flat).shard_numel), {-1, 0});
  ParamRun last;
  ForEachRun(layout, flat, rank, [&](const ParamRun& run) {
    REQUIRE(run.numel > 0);
    if (run.param == last.param) {  // ascending, and no run that could have been longer
      REQUIRE(run.local == last.local + last.numel);
      REQUIRE(run.logical > last.logical + last.numel);
    }
    last = run;
    for (int64_t i = 0; i < run.numel; ++i) {
      auto& element = content.at(static_cast<size_t>(run.local + i));
      REQUIRE(element.first == -1);
      element = {run.param.value, run.logical + i};
    }
  });
  return content;
}

TEST_CASE("runs are what splits and shards are by definition, at any mesh", "[plan][layout]") {
  SplitModels models(GENERATE(range(0u, 40u)));
  const ModelSpec spec = models.RandomModel();
  const Mesh mesh = models.RandomMesh();
  PrecisionPolicy precision;
  if (models.Between(0, 1) == 1) precision.compute = DType::kBF16;
  const ShardLayout layout = PlanShards(spec, mesh, precision);
  INFO(ToString(layout));
  std::map<std::pair<int32_t, int64_t>, int> holders;
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatId id{static_cast<int32_t>(f)};
    const FlatParam& flat = layout.flats[f];
    REQUIRE(flat.padded_numel == flat.shard_numel * mesh.Size(flat.shard));
    REQUIRE((flat.shard & flat.key.split).empty());
    // Every axis of several ranks shards the flat, splits it, or has replicas along it.
    REQUIRE(mesh.Size(flat.shard) * mesh.Size(flat.key.split) * mesh.Size(flat.replicas) ==
            mesh.world());
    for (int rank = 0; rank < mesh.world(); ++rank) {
      Content expected(static_cast<size_t>(flat.shard_numel), {-1, 0});
      for (const ParamId p : flat.params)
        for (int64_t i = 0; i < layout.param(p).spec.numel(); ++i) {
          const int64_t place = PlaceOf(layout, layout.param(p), rank, i);
          if (place < 0) continue;
          auto& element = expected.at(static_cast<size_t>(place));
          REQUIRE(element.first == -1);
          element = {p.value, i};
          ++holders[element];
        }
      if (ContentByRuns(layout, id, rank) != expected) FAIL("rank " << rank << " of " << flat.name);
    }
  }
  // Once in each group of holders: as often as there are replicas.
  for (size_t p = 0; p < layout.params.size(); ++p)
    for (int64_t i = 0; i < layout.params[p].spec.numel(); ++i) {
      const int times = holders[{static_cast<int32_t>(p), i}];
      if (times != mesh.Size(Axis::kReplicate))
        FAIL("element " << i << " of " << layout.params[p].spec.name << " is held " << times
                        << " times");
    }
}

TEST_CASE("runs within a range are the runs, cut at its ends", "[plan][layout]") {
  SplitModels models(GENERATE(range(200u, 220u)));
  const ModelSpec spec = models.RandomModel();
  const ShardLayout layout = PlanShards(spec, models.RandomMesh(), {});
  INFO(ToString(layout));
  for (const ParamId id : layout.param_ids()) {
    const int64_t numel = layout.param(id).spec.numel();
    for (const Range within :
         {Range{0, numel}, Range{1, numel - 1}, Range{numel / 2, numel / 2 + 1},
          Range{numel / 3, numel / 3 * 2}, Range{numel, numel}, Range{0, 0}})
      for (int rank = 0; rank < layout.mesh.world(); ++rank) {
        std::vector<ParamRun> expected, runs;
        ForEachRun(layout, id, rank, [&](const ParamRun& run) {
          const int64_t begin = std::max(run.logical, within.begin),
                        end = std::min(run.logical + run.numel, within.end);
          if (begin < end)
            expected.push_back({id, run.local + begin - run.logical, begin, end - begin});
        });
        ForEachRunWithin(layout, id, within, rank,
                         [&](const ParamRun& run) { runs.push_back(run); });
        if (runs != expected)
          FAIL("rank " << rank << " of " << layout.param(id).spec.name << ", " << within.begin
                       << " to " << within.end);
      }
  }
}

// Along how many dims, as far as LogicalRunsOf can say it; else 3.
int SplitDims(const ShardLayout& layout, const FlatParam& flat) {
  int most = 0;
  for (const ParamId id : flat.params) {
    int wide = 0, first = 9;
    for (const Split& split : layout.param(id).spec.splits)
      if (layout.mesh.Size(split.axes) > 1) ++wide, first = std::min(first, split.dim);
    for (const Split& split : layout.param(id).spec.splits) {
      if (layout.mesh.Size(split.axes) == 1 || split.parts.size() <= 1) continue;
      if (split.dim > 0 && !(wide == 2 && split.dim == first)) return 3;
    }
    most = std::max(most, wide);
  }
  return most;
}

TEST_CASE("a flat's runs say of each rank's elements what they are", "[plan][layout]") {
  int64_t split = 0, twice = 0, whole = 0;
  for (unsigned seed = 0; seed < 80; ++seed) {
    SplitModels models(seed);
    const ModelSpec spec = models.RandomModel();
    const ShardLayout layout = PlanShards(spec, models.RandomMesh(), {});
    for (size_t f = 0; f < layout.flats.size(); ++f) {
      const FlatId id{static_cast<int32_t>(f)};
      const FlatParam& flat = layout.flats[f];
      const int dims = SplitDims(layout, flat);
      if (dims > 2) {
        CHECK_THROWS_AS(LogicalRunsOf(layout, id), Error);
        continue;
      }
      (dims == 0 ? whole : dims == 1 ? split : twice) += 1;
      const std::vector<LogicalRun> runs = LogicalRunsOf(layout, id);
      std::map<uint64_t, int32_t> params;
      for (const ParamId p : flat.params) params[Fnv1a64(layout.param(p).spec.name)] = p.value;
      for (int rank = 0; rank < layout.mesh.world(); ++rank) {
        Content content(static_cast<size_t>(flat.shard_numel), {-1, 0});
        const int64_t begin = layout.mesh.Index(rank, flat.shard) * flat.shard_numel,
                      place = layout.mesh.Index(rank, flat.key.split);
        for (const LogicalRun& run : runs)
          for (int64_t i = std::max(run.begin, begin);
               i < std::min(run.end, begin + flat.shard_numel); ++i)
            content[static_cast<size_t>(i - begin)] = {params.at(run.key), run.At(i, place)};
        if (content != ContentByRuns(layout, id, rank))
          FAIL("seed " << seed << ", rank " << rank << " of " << flat.name);
      }
    }
  }
  CHECK(split > 10);
  CHECK(twice > 10);
  CHECK(whole > 10);
}

TEST_CASE("a split model begins with the values of the unsplit one", "[plan][init]") {
  SplitModels models(GENERATE(range(100u, 120u)));
  const ModelSpec spec = models.RandomModel();
  const ShardLayout layout = PlanShards(spec, models.RandomMesh(), {});
  INFO(ToString(layout));
  for (size_t f = 0; f < layout.flats.size(); ++f)
    for (int rank = 0; rank < layout.mesh.world(); ++rank) {
      std::vector<float> shard(static_cast<size_t>(layout.flats[f].shard_numel), NAN),
          expected(shard.size(), 0.0f);
      FillShard(layout, FlatId{static_cast<int32_t>(f)}, rank, 7, shard.data());
      for (const ParamId p : layout.flats[f].params)
        for (int64_t i = 0; i < layout.param(p).spec.numel(); ++i) {
          const int64_t place = PlaceOf(layout, layout.param(p), rank, i);
          if (place >= 0)
            expected[static_cast<size_t>(place)] = InitialValue(layout.param(p).spec, 7, i);
        }
      REQUIRE(shard == expected);
    }
}

// [2, 4, 6] split on all of its dims: by hand.
TEST_CASE("the runs of a 3-D parameter that is split on three dims", "[plan][layout]") {
  ModelSpec spec;
  spec.family = "test";
  ParamSpec param;
  param.name = "experts";
  param.dims = {2, 4, 6};
  param.padded_rows = 2;
  param.splits = {{Axis::kExpert, 0, {}}, {Axis::kContext, 1, {}}, {Axis::kTensor, 2, {2, 4}}};
  spec.units.push_back({"h.0", {param}});
  const Mesh mesh = Mesh().With(Axis::kContext, 2).With(Axis::kExpert, 2).With(Axis::kTensor, 2);
  const ShardLayout layout = PlanShards(spec, mesh, {});
  std::vector<ParamRun> runs;
  ForEachRun(layout, ParamId{0}, 5, [&](const ParamRun& run) { runs.push_back(run); });
  // Rank 5 is at context 1, expert 0, tensor 1: rows 2 and 3 of expert 0, columns 1, 4 and 5.
  CHECK(runs ==
        std::vector<ParamRun>{{{0}, 0, 13, 1}, {{0}, 1, 16, 2}, {{0}, 3, 19, 1}, {{0}, 4, 22, 2}});
  REQUIRE_THROWS_AS(ForEachRun(layout, ParamId{0}, 8, [](const ParamRun&) {}), Error);
}

}  // namespace
}  // namespace millrace
