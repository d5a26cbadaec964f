#include "runtime/exec/logical_tensors.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/data/hash.h"
#include "runtime/exec/shard_reader.h"
#include "runtime/plan/layout/param_init.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

// Integers of eight bits: bf16 has each.
std::vector<float> ValuesOf(const ParamSpec& param, std::string_view slot) {
  std::vector<float> values(static_cast<size_t>(param.numel()));
  const uint64_t salt = Fnv1a64(param.name) + Fnv1a64(slot);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 7 + i / 251 + salt) % 255) - 127;
  return values;
}

// Of sizes that 3 ranks of tensor divide.
ModelOptions DivisibleByThree(ModelOptions model) {
  model.seq_len = 9;
  for (BlockShape& block : model.blocks) {
    auto* const attention = block.Find<AttentionShape>();
    attention->heads = 6;
    attention->kv_heads = 3;
    auto* const mlp = block.Find<MlpShape>();
    mlp->width = RoundUp(mlp->width, 3);
  }
  return model;
}

// By definition: of whole tensors, one after the other.
std::string HashOfWhole(const ShardLayout& layout, const std::vector<std::string_view>& slots) {
  std::map<std::string, std::string> by_name;
  for (const std::string_view slot : slots)
    for (const ParamPlacement& param : layout.params) {
      if (!layout.flat(param.flat).Keeps(slot)) continue;
      const std::vector<float> values = ValuesOf(param.spec, slot);
      by_name[param.spec.name] +=
          Hash128(values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    }
  std::string all;
  for (const auto& [name, hash] : by_name) all += name + "\n" + hash + "\n";
  return Hash128(all);
}

// The last of the second moments that this rank holds of the flat, if it holds any.
std::vector<float> WithLastChanged(std::vector<float> shard) {
  const auto last =
      std::find_if(shard.rbegin(), shard.rend(), [](float value) { return value != 0; });
  if (last != shard.rend()) *last += *last < 0 ? 1 : -1;
  return shard;
}

// The hashes of every rank, of these values; then by flat, with an element of one rank changed.
struct Hashes {
  std::string params, optimizer;
  std::vector<std::string> changed;
  std::vector<bool> held;  // whether the rank has an element of the flat
};
std::vector<Hashes> HashesOf(const PlanCase& c, int changing_rank) {
  std::vector<Hashes> ranks(static_cast<size_t>(c.mesh.world()));
  RunEngines(c, {}, [&](Engine& engine, int rank) {
    for (const std::string_view slot : SlotNames(engine.layout()))
      WriteLogicalTensors(engine, slot,
                          [&](const ParamPlacement& p) { return ValuesOf(p.spec, slot); });
    Hashes& own = ranks[static_cast<size_t>(rank)];
    own.params = ParamHash(engine);
    own.optimizer = OptimizerHash(engine);
    for (const FlatId flat : engine.layout().flat_ids()) {
      const std::vector<float> shard = engine.ReadShard("adam_v", flat);
      const std::vector<float> changed = WithLastChanged(shard);
      own.held.push_back(changed != shard);
      if (rank == changing_rank) engine.WriteShard("adam_v", flat, changed);
      own.changed.push_back(OptimizerHash(engine));
      if (rank == changing_rank) engine.WriteShard("adam_v", flat, shard);
    }
  });
  return ranks;
}

// Shards that end inside of parameters, that hold gaps alone, and replicas; matrices whose rows and
// whose columns are split; what is kept as bf16.
TEST_CASE("hashes of states are those of whole tensors, however these are cut", "[exec][hash]") {
  PlanCase c;
  c.model = Divisible(TinyLlama(2));
  c.precision = Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.precision.moments = GENERATE(DType::kF32, DType::kBF16);
  c.options.comm_scratch_bytes = 1 << 21;
  c.mesh = GENERATE(Mesh(1, 1), Mesh(1, 2), Mesh(1, 3), Mesh(2, 2), Mesh(1, 5),
                    Mesh(1, 1).With(Axis::kTensor, 2), Mesh(1, 2).With(Axis::kTensor, 2),
                    Mesh(2, 1).With(Axis::kTensor, 2), Mesh(1, 7).With(Axis::kTensor, 2),
                    Mesh(1, 1).With(Axis::kTensor, 3), Mesh(1, 2).With(Axis::kTensor, 3),
                    Mesh(1, 2).With(Axis::kExpert, 2));
  if (c.mesh.Size(Axis::kTensor) == 3) c.model = DivisibleByThree(c.model);
  CAPTURE(ToString(c));
  const ShardLayout layout = LayoutOf(c);
  const std::string params = HashOfWhole(layout, {"master"}),
                    optimizer = HashOfWhole(layout, {"adam_m", "adam_v"});
  // Not a replica's other copy: every rank hashes what its own group holds.
  const int changing = c.mesh.Group(0, kCopyAxes).back();
  const std::vector<Hashes> ranks = HashesOf(c, changing);
  for (int rank = 0; rank < c.mesh.world(); ++rank) {
    CAPTURE(rank);
    const Hashes& own = ranks[static_cast<size_t>(rank)];
    CHECK(own.params == params);
    CHECK(own.optimizer == optimizer);
    const bool sees = c.mesh.Index(rank, Axis::kReplicate) == 0;
    for (size_t f = 0; f < own.changed.size(); ++f) {
      CAPTURE(layout.flats[f].name);
      const bool changed = sees && ranks[static_cast<size_t>(changing)].held[f];
      CHECK((own.changed[f] != optimizer) == changed);
    }
    CHECK(own.changed == ranks[static_cast<size_t>(c.mesh.Group(rank, kCopyAxes)[0])].changed);
  }
}

// Shards end inside of h.0.mlp.up.weight, whose rows tensor ranks have halves of: the order of
// ranks is not that of the values.
TEST_CASE("hashes of runs that go from rank to rank and back", "[exec][hash]") {
  PlanCase c;
  c.model = Divisible(TinyGpt2(1));
  c.mesh = Mesh(1, 3).With(Axis::kTensor, 2);
  const ShardLayout layout = LayoutOf(c);
  for (const Hashes& own : HashesOf(c, 0)) {
    CHECK(own.params == HashOfWhole(layout, {"master"}));
    CHECK(own.optimizer == HashOfWhole(layout, {"adam_m", "adam_v"}));
  }
}

TEST_CASE("hashes of matrices whose split rows are longer than a window", "[exec][hash]") {
  PlanCase c;
  c.model = Divisible(TinyLlama(1));
  c.model.d_model = 3;
  c.model.blocks[0].Find<MlpShape>()->width = 600'006;
  c.mesh = GENERATE(Mesh(1, 1).With(Axis::kTensor, 2), Mesh(1, 1).With(Axis::kTensor, 3));
  if (c.mesh.Size(Axis::kTensor) == 3) c.model = DivisibleByThree(c.model);
  c.precision.moments = DType::kBF16;
  CAPTURE(ToString(c));
  const ShardLayout layout = LayoutOf(c);
  const std::string params = HashOfWhole(layout, {"master"}),
                    optimizer = HashOfWhole(layout, {"adam_m", "adam_v"});
  const std::vector<Hashes> ranks = HashesOf(c, 0);
  for (const Hashes& own : ranks) {
    CHECK(own.params == params);
    CHECK(own.optimizer == optimizer);
    for (size_t f = 0; f < own.changed.size(); ++f) {
      CHECK(ranks[0].held[f]);
      CHECK(own.changed[f] != optimizer);
    }
  }
}

TEST_CASE("initial weights of a shard of several pieces", "[exec]") {
  PlanCase c;
  c.model = Divisible(TinyLlama(1));
  c.model.d_model = 3;
  c.model.blocks[0].Find<MlpShape>()->width = 600'006;
  const ShardLayout layout = LayoutOf(c);
  int64_t numel = 0;
  for (const FlatParam& flat : layout.flats) numel = std::max(numel, flat.shard_numel);
  REQUIRE(numel > int64_t{1} << 22);
  RunEngines(c, {}, [&](Engine& engine, int rank) {
    engine.InitWeights(77);
    for (const FlatId flat : layout.flat_ids()) {
      std::vector<float> expected(static_cast<size_t>(layout.flat(flat).shard_numel));
      FillShard(layout, flat, rank, 77, expected.data());
      REQUIRE((engine.ReadShard("master", flat) == expected));  // without all the values in words
    }
  });
}

// Also by a rank that holds nothing that comes first, and would wait for the others.
TEST_CASE("hashes of released memory are refused on all ranks", "[exec][hash]") {
  PlanCase c;
  c.mesh = Mesh(1, 18);  // some hold the middle of a parameter of each flat, and no beginning
  std::vector<std::string> refused(18);
  EngineOptions options;
  options.releasable = true;
  RunEngines(c, options, [&](Engine& engine, int rank) {
    engine.Release(ArenaPart::kAll);
    try {
      ParamHash(engine);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument)
        refused[static_cast<size_t>(rank)] = error.what();
    }
    engine.Acquire();
  });
  for (const std::string& why : refused)
    CHECK(why.find("is released (all): Acquire() brings it back") != std::string::npos);
}

TEST_CASE("a shard that is read in pieces is the shard", "[exec][hash]") {
  PlanCase c;
  c.model = TinyGpt2();
  c.model.vocab = 131'101;  // rows of 10: more than a piece
  c.precision = Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.precision.moments = DType::kBF16;
  RunEngines(c, {}, [](Engine& engine, int) {
    const FlatId flat{0};
    const int64_t numel = engine.layout().flat(flat).shard_numel, piece = 1 << 20;
    MR_CHECK(numel > piece, "one piece of {} elements would do", numel);
    ShardReader reader(engine);
    for (const std::string_view slot : {"master", "adam_m"}) {
      WriteLogicalTensors(engine, slot,
                          [&](const ParamPlacement& p) { return ValuesOf(p.spec, slot); });
      const std::vector<float> whole = engine.ReadShard(slot, flat);
      for (const Range range :
           {Range{0, numel}, Range{1, numel - 1}, Range{0, 1}, Range{numel - 1, numel}, Range{7, 7},
            Range{numel, numel}, Range{3, piece + 3}, Range{3, piece + 4}, Range{0, piece}}) {
        std::vector<float> read;
        reader.Read(slot, flat, range, [&](std::span<const float> values) {
          read.insert(read.end(), values.begin(), values.end());
        });
        CAPTURE(slot, range.begin, range.end);
        const std::vector<float> expected(whole.begin() + range.begin, whole.begin() + range.end);
        REQUIRE((read == expected));  // without all the values in its words
      }
      for (const Range range : {Range{-1, 1}, Range{0, numel + 1}, Range{2, 1}})
        REQUIRE_THROWS_AS(reader.Read(slot, flat, range, [](std::span<const float>) {}), Error);
    }
  });
}

}  // namespace
}  // namespace millrace::test
