#include "runtime/plan/layout/shard_layout.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr PrecisionPolicy kAllF32{};
constexpr PrecisionPolicy kBf16NormsF32{.compute = DType::kBF16,
                                        .norm_params = DType::kF32,
                                        .grad_accumulate = DType::kF32,
                                        .grad_wire = DType::kBF16};
constexpr PrecisionPolicy kBf16{.compute = DType::kBF16,
                                .norm_params = DType::kBF16,
                                .grad_accumulate = DType::kF32,
                                .grad_wire = DType::kF32};

ParamSpec Matrix(std::string name, int64_t rows, int64_t cols, int64_t padded_rows = 0) {
  ParamSpec param;
  param.name = std::move(name);
  param.dims = {rows, cols};
  param.padded_rows = std::max(rows, padded_rows);
  param.decay = true;
  return param;
}

ParamSpec Vector(std::string name, int64_t n, ParamKind kind) {
  ParamSpec param;
  param.name = std::move(name);
  param.dims = {n};
  param.padded_rows = n;
  param.init = InitKind::kOnes;
  param.kind = kind;
  return param;
}

ModelSpec SmallModel() {
  ModelSpec spec;
  spec.family = "test";
  spec.units.push_back({"embed", {Matrix("wte", 5, 16, 8)}});
  spec.units.push_back(
      {"h.0", {Vector("h.0.norm", 16, ParamKind::kNorm), Matrix("h.0.w", 10, 16)}});
  spec.units.push_back({"final", {Vector("norm", 16, ParamKind::kNorm)}});
  return spec;
}

// wte: 5 of 8 rows of 16 are logical, elements [0, 80); rows 5..7 are padding up to 128.
//
//   element   0        80      128
//             |wte     |padded |
TEST_CASE("the layout of a small model, all f32, on one rank", "[plan][layout]") {
  REQUIRE(ToString(PlanShards(SmallModel(), {1, 1}, kAllF32)) ==
          "layout replicate=1 shard=1 compute=f32 norms=f32 grad_accumulate=f32 grad_wire=f32\n"
          "flat 0 embed f32 padded=128 shard=128\n"
          "  [0, 128) wte [5, 16] stored as 8 rows\n"
          "  gaps [80, 128)\n"
          "  decay [0, 80)\n"
          "flat 1 h.0 f32 padded=256 shard=256\n"
          "  [0, 16) h.0.norm [16]\n"
          "  [64, 224) h.0.w [10, 16]\n"
          "  gaps [16, 64) [224, 256)\n"
          "  decay [64, 224)\n"
          "flat 2 final f32 padded=64 shard=64\n"
          "  [0, 16) norm [16]\n"
          "  gaps [16, 64)\n"
          "  decay none\n");
}

// Two norms in a flat of their own, at multiples of 128 elements: their gradients travel as bf16.
TEST_CASE("norms kept in f32 beside bf16 matrices share one flat parameter", "[plan][layout]") {
  REQUIRE(ToString(PlanShards(SmallModel(), {2, 3}, kBf16NormsF32)) ==
          "layout replicate=2 shard=3 compute=bf16 norms=f32 grad_accumulate=f32 grad_wire=bf16\n"
          "flat 0 embed bf16 padded=384 shard=128\n"
          "  [0, 128) wte [5, 16] stored as 8 rows\n"
          "  gaps [80, 384)\n"
          "  decay [0, 80)\n"
          "flat 1 h.0 bf16 padded=384 shard=128\n"
          "  [0, 160) h.0.w [10, 16]\n"
          "  gaps [160, 384)\n"
          "  decay [0, 160)\n"
          "flat 2 norms f32 padded=384 shard=128\n"
          "  [0, 16) h.0.norm [16]\n"
          "  [128, 144) norm [16]\n"
          "  gaps [16, 128) [144, 384)\n"
          "  decay none\n");
}

// Of the block: the norm is whole on both ranks of the tensor axis, which shard it together with
// the shard axis; of the matrices each rank has its rows of q|k|v, and its columns. b is frozen.
TEST_CASE("flats of a unit are keyed by split and by whether they are trained", "[plan][layout]") {
  ModelSpec spec;
  spec.family = "test";
  ParamSpec qkv = Matrix("qkv", 16, 8), out = Matrix("out", 8, 6), bias = Vector("b", 6, {});
  qkv.splits = {{Axis::kTensor, 0, {8, 4, 4}}};
  out.splits = {{Axis::kTensor, 1, {}}};
  bias.trainable = false;
  spec.units.push_back({"h.0", {Vector("norm", 16, ParamKind::kNorm), qkv, out, bias}});
  const std::string tail =
      " compute=f32 norms=f32 grad_accumulate=f32 grad_wire=f32\n"
      "flat 0 h.0 f32 padded=";
  CHECK(ToString(PlanShards(spec, Mesh(1, 2).With(Axis::kTensor, 2), kAllF32)) ==
        "layout replicate=1 shard=2 tensor=2" + tail +
            "256 shard=64 over shard+tensor\n"
            "  [0, 16) norm [16]\n"
            "  gaps [16, 256)\n"
            "  decay none\n"
            "flat 1 h.0@tensor f32 padded=128 shard=64 split over tensor\n"
            "  [0, 64) qkv [16, 8] here [8, 8]\n"
            "  [64, 88) out [8, 6] here [8, 3]\n"
            "  gaps [88, 128)\n"
            "  decay [0, 88)\n"
            "flat 2 h.0@frozen f32 padded=256 shard=64 over shard+tensor frozen\n"
            "  [0, 6) b [6]\n"
            "  gaps [6, 256)\n"
            "  decay none\n");
  // With one rank along the axis there is no split, and one flat of what is trained.
  const ShardLayout whole = PlanShards(spec, {1, 2}, kAllF32);
  REQUIRE(whole.flats.size() == 2);
  CHECK(whole.flats[0].params == std::vector<ParamId>{{0}, {1}, {2}});
  CHECK(whole.flats[0].shard == Axis::kShard);
  CHECK(whole.flats[0].slots().size() == 3);
  CHECK(whole.flats[1].name == "h.0@frozen");
  CHECK(SlotNames(whole) == std::vector<std::string_view>{"master", "adam_m", "adam_v"});
  std::string saved;
  for (const auto& [slot, flat] : SavedSlots(whole))
    saved += std::string(slot.name) + "/" + whole.flat(flat).name + " ";
  CHECK(saved == "master/h.0 master/h.0@frozen adam_m/h.0 adam_v/h.0 ");
  CHECK(whole.flats[1].slots() == std::vector<StateSlot>{kMasterSlot});
}

// Checkpoints know them by name.
TEST_CASE("flats have names of their own, whatever units are called", "[plan][layout]") {
  ModelSpec spec = SmallModel();
  spec.units[1].name = "norms";
  const ShardLayout layout = PlanShards(spec, {1, 2}, kBf16NormsF32);
  REQUIRE(layout.flats.size() == 3);
  CHECK(layout.flats[0].name == "embed");
  CHECK(layout.flats[1].name == "norms");
  CHECK(layout.flats[2].name == "norms#2");
}

ModelSpec RandomModel(std::mt19937& random) {
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  ModelSpec spec;
  spec.family = "random";
  const int64_t units = between(1, 6);
  for (int64_t u = 0; u < units; ++u) {
    UnitSpec unit{"u" + std::to_string(u), {}};
    const int64_t params = between(0, 5);
    for (int64_t p = 0; p < params; ++p) {
      const std::string name = unit.name + ".p" + std::to_string(p);
      if (between(0, 2) == 0) {
        unit.params.push_back(
            Vector(name, between(1, 300), between(0, 1) ? ParamKind::kNorm : ParamKind::kMatrix));
      } else {
        const int64_t rows = between(1, 40);
        unit.params.push_back(
            Matrix(name, rows, between(1, 40), rows + between(0, 1) * between(0, 20)));
      }
      unit.params.back().decay = between(0, 1) == 1;
    }
    spec.units.push_back(std::move(unit));
  }
  return spec;
}

// Which parameter's logical element lies at each element of the flat: (ParamId,
// index), or (-1, 0) in gaps.
std::vector<std::pair<int32_t, int64_t>> Cover(const ShardLayout& layout, const FlatParam& flat) {
  std::vector<std::pair<int32_t, int64_t>> cover(static_cast<size_t>(flat.padded_numel), {-1, 0});
  for (const ParamId id : flat.params)
    for (int64_t i = 0; i < layout.param(id).spec.numel(); ++i) {
      auto& element = cover.at(static_cast<size_t>(layout.param(id).begin + i));
      REQUIRE(element.first == -1);  // disjoint
      element = {id.value, i};
    }
  return cover;
}

std::vector<bool> Marked(const std::vector<Range>& ranges, int64_t numel) {
  std::vector<bool> marked(static_cast<size_t>(numel), false);
  int64_t last_end = -1;
  for (const Range& r : ranges) {
    REQUIRE(r.begin > last_end);  // ascending, disjoint and not mergeable
    REQUIRE(r.end > r.begin);
    for (int64_t i = r.begin; i < r.end; ++i) marked.at(static_cast<size_t>(i)) = true;
    last_end = r.end;
  }
  return marked;
}

TEST_CASE("any layout covers each logical element once, aligned, and its gaps are exactly the rest",
          "[plan][layout]") {
  const int shard = GENERATE(range(1, 10));
  const PrecisionPolicy policy = GENERATE(kAllF32, kBf16NormsF32, kBf16);
  // By hand: 256 bytes of the narrowest of gather encoding, accumulate and wire.
  const auto alignment = [&](const FlatParam& flat) -> int64_t {
    return flat.key.encoding == DType::kBF16 || policy.grad_wire == DType::kBF16 ? 128 : 64;
  };
  std::mt19937 random(static_cast<uint32_t>(shard));
  for (int round = 0; round < 20; ++round) {
    const ModelSpec spec = RandomModel(random);
    const ShardLayout layout = PlanShards(spec, {1 + round % 3, shard}, policy);
    const ShardLayout single = PlanShards(spec, {1, 1}, policy);
    INFO(ToString(layout));

    std::vector<int> seen(layout.params.size(), 0);
    for (size_t f = 0; f < layout.flats.size(); ++f) {
      const FlatParam& flat = layout.flats[f];
      REQUIRE_FALSE(flat.params.empty());
      REQUIRE(flat.padded_numel == shard * flat.shard_numel);
      REQUIRE(flat.shard_numel % alignment(flat) == 0);
      const std::vector<std::pair<int32_t, int64_t>> cover = Cover(layout, flat);
      const std::vector<bool> gap = Marked(flat.gaps, flat.padded_numel),
                              decay = Marked(flat.decay, flat.padded_numel);
      for (size_t i = 0; i < cover.size(); ++i) {
        const int32_t owner = cover[i].first;
        if (gap[i] != (owner < 0))
          FAIL("element " << i << " of " << flat.name << " is gap: " << gap[i]);
        if (decay[i] != (owner >= 0 && layout.params[static_cast<size_t>(owner)].spec.decay))
          FAIL("element " << i << " of " << flat.name << " decays: " << decay[i]);
      }
      int64_t previous_end = 0;
      for (const ParamId id : flat.params) {
        const ParamPlacement& param = layout.param(id);
        ++seen[static_cast<size_t>(id.value)];
        REQUIRE(param.flat == FlatId{static_cast<int32_t>(f)});
        REQUIRE(param.begin % alignment(flat) == 0);
        REQUIRE(param.begin >= previous_end);
        REQUIRE(param.begin - previous_end <
                alignment(flat));  // no more padding than alignment asks for
        REQUIRE(param.end - param.begin == param.spec.stored_numel());
        REQUIRE(param.begin == single.param(id).begin);  // the same at any mesh
        previous_end = param.end;
      }
      REQUIRE(flat.padded_numel - previous_end < shard * alignment(flat));
    }

    // Params by id: units in order, parameters in order; each in one flat of the right kind.
    size_t id = 0;
    for (size_t u = 0; u < spec.units.size(); ++u)
      for (const ParamSpec& param : spec.units[u].params) {
        const ParamPlacement& placed = layout.params.at(id);
        REQUIRE(placed.spec == param);
        REQUIRE(placed.unit == UnitId{static_cast<int32_t>(u)});
        REQUIRE(seen[id] == 1);
        const FlatParam& flat = layout.flat(placed.flat);
        const bool apart = param.kind == ParamKind::kNorm && policy.compute != policy.norm_params;
        REQUIRE(flat.name == (apart ? "norms" : spec.units[u].name));
        REQUIRE(flat.key.unit ==
                (apart ? UnitId{static_cast<int32_t>(spec.units.size())} : placed.unit));
        REQUIRE((layout.role(placed.flat) == UnitRole::kShared) == apart);
        REQUIRE(flat.key.encoding ==
                (param.kind == ParamKind::kNorm ? policy.norm_params : policy.compute));
        ++id;
      }
    REQUIRE(id == layout.params.size());
    REQUIRE(layout == PlanShards(spec, layout.mesh, policy));
  }
}

TEST_CASE("a layout that cannot be is refused by name", "[plan][layout]") {
  const auto refuses = [](const ModelSpec& spec, Mesh mesh, const PrecisionPolicy& policy,
                          const std::string& text) {
    try {
      PlanShards(spec, mesh, policy);
    } catch (const Error& error) {
      CAPTURE(error.what());
      REQUIRE(error.code() == ErrorCode::kInternal);
      REQUIRE(std::string(error.what()).find(text) != std::string::npos);
      return;
    }
    FAIL("accepted; expected an error with " << text);
  };
  refuses(SmallModel(), {1, 0}, kAllF32, "shard 0");
  refuses(SmallModel(), {0, 2}, kAllF32, "replicate 0");
  PrecisionPolicy integers;
  integers.grad_wire = DType::kI32;
  refuses(SmallModel(), {}, integers, "i32");
  ModelSpec twice = SmallModel();
  twice.units[2].params[0].name = "wte";
  refuses(twice, {}, kAllF32, "wte");
  ModelSpec short_rows = SmallModel();
  short_rows.units[0].params[0].padded_rows = 4;
  refuses(short_rows, {}, kAllF32, "wte");
  const auto with_split = [&](const std::vector<Split>& splits) {
    ModelSpec spec = SmallModel();  // h.0.w is [10, 16]
    spec.units[1].params[1].splits = splits;
    return spec;
  };
  refuses(with_split({{Axis::kShard, 0, {}}}), {}, kAllF32, "a split over shard");
  refuses(with_split({{Axis::kTensor, 2, {}}}), {}, kAllF32, "h.0.w");
  refuses(with_split({{Axis::kTensor, 0, {}}, {Axis::kTensor, 1, {}}}), {}, kAllF32, "each once");
  refuses(with_split({{Axis::kTensor, 0, {}}, {Axis::kExpert, 0, {}}}), {}, kAllF32, "twice");
  refuses(with_split({{Axis::kTensor, 0, {4, 5}}}), {}, kAllF32, "9 together, not 10");
  refuses(with_split({{Axis::kTensor, 0, {10, 0}}}), {}, kAllF32, "a part of 0");
  ModelSpec padded = with_split({{Axis::kTensor, 0, {}}});
  padded.units[1].params[1].padded_rows = 12;
  refuses(padded, {}, kAllF32, "both split and padded");
  try {
    PlanShards(with_split({{Axis::kTensor, 0, {4, 6}}}), Mesh().With(Axis::kTensor, 4), kAllF32);
    FAIL("6 rows over 4 ranks");
  } catch (const Error& error) {
    CAPTURE(error.what());
    CHECK(error.code() == ErrorCode::kConfig);
    CHECK(std::string(error.what())
              .find("h.0.w: 6 of dim 0 cannot be cut over 4 ranks of "
                    "tensor") != std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
