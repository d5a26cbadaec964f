#include "runtime/exec/logical_tensors.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/data/hash.h"
#include "runtime/exec/shard_reader.h"
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

// Of the second moments that this rank holds, as its shard of the last flat that has any here.
void ChangeLastElement(Engine& engine) {
  for (auto f = static_cast<int32_t>(engine.layout().flats.size()); f-- > 0;) {
    std::vector<float> shard = engine.ReadShard("adam_v", FlatId{f});
    const auto last =
        std::find_if(shard.rbegin(), shard.rend(), [](float value) { return value != 0; });
    if (last == shard.rend()) continue;
    *last += *last < 0 ? 1 : -1;
    return engine.WriteShard("adam_v", FlatId{f}, shard);
  }
  MR_FAIL("this rank holds nothing");
}

// The hashes of every rank, of these values; then with an element of one rank changed.
struct Hashes {
  std::string params, optimizer, changed;
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
    if (rank == changing_rank) ChangeLastElement(engine);
    own.changed = OptimizerHash(engine);
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
                    Mesh(1, 2).With(Axis::kTensor, 2), Mesh(2, 1).With(Axis::kTensor, 2),
                    Mesh(1, 2).With(Axis::kExpert, 2));
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
    if (c.mesh.Index(rank, Axis::kReplicate) == 0)
      CHECK(own.changed != optimizer);
    else
      CHECK(own.changed == optimizer);
    CHECK(own.changed == ranks[static_cast<size_t>(c.mesh.Group(rank, kCopyAxes)[0])].changed);
  }
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
        REQUIRE(read == std::vector<float>(whole.begin() + range.begin, whole.begin() + range.end));
      }
      for (const Range range : {Range{-1, 1}, Range{0, numel + 1}, Range{2, 1}})
        REQUIRE_THROWS_AS(reader.Read(slot, flat, range, [](std::span<const float>) {}), Error);
    }
  });
}

}  // namespace
}  // namespace millrace::test
