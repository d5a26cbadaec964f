// Which rank makes which matrices orthogonal, and what the plan does for it.
#include "runtime/plan/layout/muon_rounds.h"

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <set>

#include "models/model.h"
#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

ModelOptions ByMuon(ModelOptions o) {
  o.hidden_update = UpdateRule::kMuon;
  return o;
}

ShardLayout LayoutOf(const ModelOptions& o, const Mesh& mesh) {
  return PlanShards(MakeModel(ByMuon(o))->spec(), mesh, {});
}

using Sizes = std::vector<std::pair<int64_t, int64_t>>;

Sizes SizesOf(const MuonRound& round) {
  Sizes sizes;
  for (const MuonMatrix& matrix : round.matrices) sizes.emplace_back(matrix.rows, matrix.columns);
  return sizes;
}

TEST_CASE("fused parts are matrices of their own, and where they lie", "[plan][muon]") {
  const ShardLayout layout = LayoutOf(test::TinyLlama(1), {1, 1});
  const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
  REQUIRE(rounds.size() == 1);
  // q 4 x 4 heads of 10 columns, k and v 2 x 4, o, gate, up, down.
  CHECK(SizesOf(rounds[0]) ==
        Sizes{{16, 10}, {8, 10}, {8, 10}, {10, 16}, {14, 10}, {14, 10}, {10, 14}});
  // 320 elements of qkv end at a multiple of 64; o's 160 do not.
  CHECK(rounds[0].matrices[1].begin == 160);
  CHECK(rounds[0].matrices[3].begin == 320);
  CHECK(rounds[0].matrices[4].begin == 512);
  CHECK(rounds[0].matrices[5].begin == 512 + 140);
}

TEST_CASE("embedding, head, router, convolution, biases and norms stay AdamW's", "[plan][muon]") {
  const auto by_muon = [](const ModelOptions& o) {
    std::set<std::string> names;
    const std::unique_ptr<Model> model = MakeModel(ByMuon(o));
    for (const UnitSpec& unit : model->spec().units)
      for (const ParamSpec& param : unit.params)
        if (param.update == UpdateRule::kMuon) names.insert(param.name);
    return names;
  };
  CHECK(by_muon(test::TinyGpt2(1)) ==
        std::set<std::string>{"h.0.attn.qkv.weight", "h.0.attn.proj.weight", "h.0.mlp.up.weight",
                              "h.0.mlp.down.weight"});
  ModelOptions mixed = test::TinyNemotronH();
  const MoeShape moe{.experts = 3, .top_k = 1, .width = 5};
  const MambaShape mamba{.heads = 2, .head_dim = 3, .groups = 1, .state = 4};
  mixed.blocks = {BlockShape{{moe}}, BlockShape{{mamba}}};
  const std::set<std::string> names = by_muon(mixed);
  CHECK(names.size() == 4);
  for (const char* name :
       {"h.1.mamba.in_proj.weight", "h.1.mamba.out_proj.weight", "h.0.moe.experts.down.weight"})
    CHECK(names.contains(name));
}

TEST_CASE("blocks take turns, each once, and a last round may be short", "[plan][muon]") {
  for (const int shards : {1, 2, 3, 7}) {
    const ShardLayout layout = LayoutOf(test::TinyGpt2(5), {2, shards});
    const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
    CHECK(rounds == MuonRoundsOf(layout));  // of the layout alone
    CHECK(rounds.size() == static_cast<size_t>((5 + shards - 1) / shards));
    std::vector<FlatId> owned;
    for (const MuonRound& round : rounds) {
      CHECK(round.places == shards);
      CHECK(round.flats.size() <= static_cast<size_t>(shards));
      owned.insert(owned.end(), round.flats.begin(), round.flats.end());
    }
    std::vector<FlatId> all;
    for (size_t f = 0; f < layout.flats.size(); ++f)
      if (layout.flats[f].key.update == UpdateRule::kMuon)
        all.push_back(FlatId{static_cast<int32_t>(f)});
    CHECK(all.size() == 5);
    CHECK(owned == all);
  }
}

TEST_CASE("flats of another form are rounds of their own", "[plan][muon]") {
  const ShardLayout layout = LayoutOf(test::Unequal(test::TinyLlama()), {1, 4});
  const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
  CHECK(rounds.size() == 4);
  for (const MuonRound& round : rounds) CHECK(round.flats.size() == 1);
}

// Blocks of a unit: how many, whether their shards are alike, and what is in one then.
TEST_CASE("ranks keep the matrices that their shards have whole, where shards are alike",
          "[plan][muon]") {
  const auto rounds_of = [](int64_t blocks, int shards, ModelOptions o = test::TinyLlama(4)) {
    o.blocks_per_unit = blocks;
    return MuonRoundsOf(LayoutOf(o, {1, shards}));
  };
  const Sizes block = SizesOf(rounds_of(1, 1).front());
  for (const auto& [blocks, shards] : {std::pair(4, 4), {4, 2}, {2, 2}, {2, 1}}) {
    CAPTURE(blocks, shards);
    const std::vector<MuonRound> rounds = rounds_of(blocks, shards);
    CHECK(rounds.size() == static_cast<size_t>(4 / blocks));
    Sizes expected;
    for (int i = 0; i < blocks / shards; ++i)
      expected.insert(expected.end(), block.begin(), block.end());
    int64_t covered = 0;
    for (const MuonRound& round : rounds) {
      CHECK(round.places == 1);
      CHECK(round.flats.size() == 1);
      CHECK(SizesOf(round) == expected);
      covered = 0;
      for (const MuonMatrix& matrix : round.matrices) covered += matrix.numel();
      for (const Range& gap : round.gaps) covered += gap.end - gap.begin;
      CHECK(covered == round.numel());
    }
  }
  // A rank would have parts of a block, or another number of blocks than the next.
  for (const auto& [blocks, shards] : {std::pair(1, 2), {2, 4}, {4, 3}, {2, 3}})
    for (const MuonRound& round : rounds_of(blocks, shards)) CHECK(round.places == shards);
  // As many elements, but other matrices.
  for (const MuonRound& round : rounds_of(2, 2, test::Unequal(test::TinyLlama())))
    CHECK(round.places == 2);
}

TEST_CASE("batches are even, of rounds that go together, and as long as they are told",
          "[plan][muon]") {
  const ShardLayout layout = LayoutOf(test::TinyGpt2(7), {1, 2});
  const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
  REQUIRE(rounds.size() == 4);
  const int64_t numel = rounds[0].numel();
  const auto sizes = [&](int64_t most) {
    std::vector<size_t> found;
    std::vector<MuonRound> all;
    for (const std::vector<MuonRound>& batch : MuonBatchesOf(layout, most)) {
      found.push_back(batch.size());
      all.insert(all.end(), batch.begin(), batch.end());
    }
    CHECK(all == rounds);
    return found;
  };
  CHECK(sizes(4 * numel) == std::vector<size_t>{4});
  CHECK(sizes(4 * numel - 1) == std::vector<size_t>{2, 2});
  CHECK(sizes(2 * numel - 1) == std::vector<size_t>{1, 1, 2});
  CHECK(sizes(1) == std::vector<size_t>{1, 1, 1, 1});
}

TEST_CASE("matrices of one shape are one batch, wherever they lie", "[plan][muon]") {
  MuonRound round;
  round.turn_numel = 100;
  round.matrices = {{0, 3, 4}, {12, 3, 4}, {24, 4, 3}, {40, 3, 4}, {60, 3, 4}};
  const std::vector<MuonShape> shapes = MuonShapesOf({round, round, round});
  const auto runs_of = [](const MuonShape& shape) {
    std::vector<std::array<int64_t, 4>> runs;
    for (const MuonRun& run : shape.runs)
      runs.push_back({run.begin, run.count, run.apart, run.matrices});
    return runs;
  };
  using Runs = std::vector<std::array<int64_t, 4>>;
  REQUIRE(shapes.size() == 2);
  CHECK(shapes[0].rows == 3);
  CHECK(shapes[0].matrices() == 12);
  CHECK(runs_of(shapes[0]) == Runs{{0, 1, 0, 2},
                                   {40, 2, 20, 1},
                                   {100, 1, 0, 2},
                                   {140, 2, 20, 1},
                                   {200, 1, 0, 2},
                                   {240, 2, 20, 1}});
  CHECK(shapes[1].columns == 3);
  CHECK(runs_of(shapes[1]) == Runs{{24, 3, 100, 1}});
}

TEST_CASE("the matrices of a shape are cut into slices of whole ones", "[plan][muon]") {
  // Two runs of three with a gap, and one of five: 11 matrices of 12 elements, in halves or whole.
  for (const int64_t parts : {1, 2}) {
    const int64_t apart = parts == 1 ? 0 : 1000;
    const MuonRun three{.begin = 10,
                        .count = 2,
                        .apart = 50,
                        .matrices = 3,
                        .parts = parts,
                        .part_apart = apart,
                        .dim = 0,
                        .blocks = parts == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{4}};
    MuonRun five = three;
    five.begin = 200, five.count = 1, five.apart = 0, five.matrices = 5;
    const MuonShape shape{4, 3, {three, five}};
    const auto begins = [&](const MuonShape& of) {
      std::vector<int64_t> all;
      for (const MuonRun& run : of.runs)
        for (int64_t i = 0; i < run.size(); ++i)
          all.push_back(run.begin + i / run.matrices * run.apart + i % run.matrices * 12 / parts);
      return all;
    };
    CHECK(MuonSlicesOf(shape, 11 * 12) == std::vector{shape});
    for (const auto& [numel, slices] :
         {std::pair{11 * 12 - 1, 2}, {5 * 12, 3}, {4 * 12 + 11, 3}, {24, 6}, {12, 11}, {1, 11}}) {
      CAPTURE(parts, numel);
      const std::vector<MuonShape> cut = MuonSlicesOf(shape, numel);
      REQUIRE(std::ssize(cut) == slices);
      std::vector<int64_t> all;
      for (const MuonShape& slice : cut) {
        CHECK(slice.rows == 4);
        CHECK(slice.columns == 3);
        CHECK(slice.matrices() * 12 <= std::max(numel, 12));
        for (const int64_t begin : begins(slice)) all.push_back(begin);
        for (const MuonRun& run : slice.runs) {
          CHECK(run.parts == parts);
          CHECK(run.part_apart == apart);
          CHECK(run.blocks == three.blocks);
        }
      }
      CHECK(all == begins(shape));
    }
  }
}

TEST_CASE("experts are matrices of their own, and a split by experts leaves them whole",
          "[plan][muon]") {
  ModelOptions o = test::TinyQwen3(1);
  o.family = Name(ModelFamily::kQwen3Moe);
  const AttentionShape attention = *o.blocks[0].Find<AttentionShape>();
  o.blocks = {BlockShape{{attention, MoeShape{.experts = 4, .top_k = 2, .width = 5}}}};
  const auto experts_of = [&](int64_t ranks) {
    o.expert = ranks;
    int64_t count = 0;
    const ShardLayout layout = LayoutOf(o, Mesh(1, 1).With(Axis::kExpert, static_cast<int>(ranks)));
    for (const MuonRound& round : MuonRoundsOf(layout))
      for (const MuonMatrix& matrix : round.matrices)
        count += matrix.rows == 5 && matrix.columns == 10;  // gate or up
    return count;
  };
  CHECK(experts_of(1) == 8);
  CHECK(experts_of(2) == 4);
}

TEST_CASE("of matrices that ranks split, all parts of one turn come together", "[plan][muon]") {
  ModelOptions o = test::Divisible(test::TinyLlama());
  o.tensor = 2;
  for (const int shards : {1, 2}) {
    CAPTURE(shards);
    const ShardLayout layout = LayoutOf(o, Mesh(1, shards).With(Axis::kTensor, 2));
    const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
    const auto blocks = static_cast<int64_t>(o.blocks.size());
    REQUIRE(std::ssize(rounds) == (blocks + 2 * shards - 1) / (2 * shards));
    ModelOptions whole_options = o;
    whole_options.tensor = 1;
    const MuonRound whole = MuonRoundsOf(LayoutOf(whole_options, {1, 1})).front();
    for (const MuonRound& round : rounds) {
      CHECK(round.places == shards);
      CHECK(round.turns == 2);
      CHECK(round.split == Axis::kTensor);
      REQUIRE(round.matrices.size() == whole.matrices.size());
      for (size_t i = 0; i < round.matrices.size(); ++i) {
        const MuonMatrix &part = round.matrices[i], &of = whole.matrices[i];
        const bool by_columns = i == 3 || i == 6;  // o, down
        CHECK(part.dim == (by_columns ? 1 : 0));
        CHECK(part.blocks == std::vector{by_columns ? of.columns : of.rows});
        CHECK(part.rows == of.rows / (by_columns ? 1 : 2));
        CHECK(part.columns == of.columns / (by_columns ? 2 : 1));
      }
    }
    const std::vector<MuonShape> shapes = MuonShapesOf({rounds.front()});
    REQUIRE(shapes.size() == MuonShapesOf({whole}).size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      CHECK(shapes[i].rows == MuonShapesOf({whole})[i].rows);
      CHECK(shapes[i].columns == MuonShapesOf({whole})[i].columns);
      for (const MuonRun& run : shapes[i].runs) {
        CHECK(run.parts == 2);
        CHECK(run.part_apart == rounds.front().turn_numel);
      }
    }
  }
}

TEST_CASE("experts' matrices that ranks have in parts are refused", "[plan][muon]") {
  ModelOptions o = test::TinyQwen3(1);
  o.family = Name(ModelFamily::kQwen3Moe);
  o.blocks = {BlockShape{
      {*o.blocks[0].Find<AttentionShape>(), MoeShape{.experts = 4, .top_k = 2, .width = 6}}}};
  ModelSpec spec = MakeModel(ByMuon(o))->spec();
  for (UnitSpec& unit : spec.units)
    for (ParamSpec& param : unit.params)
      if (param.name == "h.0.moe.experts.down.weight") param.splits = {{Axis::kTensor, 2, {}}};
  const ShardLayout layout = PlanShards(spec, Mesh(1, 1).With(Axis::kTensor, 2), {});
  REQUIRE_THROWS_WITH(MuonRoundsOf(layout),
                      Catch::Contains("optimizer.name, or a name in optimizer.groups, is muon for "
                                      "h.0.moe.experts.down.weight, which is split over tensor; "
                                      "whole matrices are needed: adamw is allowed"));
}

TEST_CASE("fused matrices that ranks would have mixed rows of are no plan", "[plan][muon]") {
  ModelOptions o = test::Divisible(test::TinyLlama());
  o.tensor = 2;
  const ModelSpec good = MakeModel(ByMuon(o))->spec();
  for (const bool mixed : {false, true}) {
    ModelSpec spec = good;
    int changed = 0;
    for (UnitSpec& unit : spec.units)
      for (ParamSpec& param : unit.params)
        if (param.name == "h.0.attn.qkv.weight" && mixed) param.splits[0].parts = {}, ++changed;
    REQUIRE(changed == (mixed ? 1 : 0));
    const ShardLayout layout = PlanShards(spec, Mesh(1, 1).With(Axis::kTensor, 2), {});
    if (mixed)
      CHECK_THROWS_WITH(MuonRoundsOf(layout),
                        Catch::Contains("parts of h.0.attn.qkv.weight are not its matrices"));
    else
      CHECK_FALSE(MuonRoundsOf(layout).empty());
  }
}

test::PlanCase CaseOf(int shards) {
  test::PlanCase c;
  c.model = ByMuon(test::TinyLlama(3));
  c.mesh = {1, shards};
  return c;
}

template <template <class> class Op>
int CountOf(const StepPlan& plan) {
  int count = 0;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) count += std::holds_alternative<Op<View>>(op.op);
  return count;
}

TEST_CASE("a batch is five steps of every shape, a round two exchanges, and a flat an update",
          "[plan][muon]") {
  for (const int shards : {1, 2, 3})
    for (const bool together : {true, false}) {
      test::PlanCase c = CaseOf(shards);
      if (!together) c.options.muon.batch_numel = 1;
      const StepPlan plan = test::PlanOf(c);
      const int rounds = (3 + shards - 1) / shards;
      CAPTURE(shards, together);
      CHECK(CountOf<AllToAllOp>(plan) == (shards > 1 ? 2 * rounds : 0));
      // q, k and v, o, gate and up, down: of which the last step's results go home round by round.
      // Else all seven matrices of every round, one by one.
      const int slices = together ? 5 : 7 * rounds, stored = (together ? 5 : 7) * rounds;
      CHECK(CountOf<MuonNormaliseOp>(plan) == slices);
      CHECK(CountOf<BatchedMatmulOp>(plan) == (5 * 2 + 4) * slices + stored);
      CHECK(CountOf<MuonMomentumOp>(plan) == 3);
      CHECK(CountOf<MuonUpdateOp>(plan) == 3);
      CheckPlan(plan, c.mesh, 1);
    }
}

// Axes of one size could be taken for each other, and bytes would not tell.
TEST_CASE("the proof knows along which axes shards are exchanged", "[plan][muon]") {
  test::PlanCase c = CaseOf(2);
  c.mesh = {2, 2};
  const StepPlan good = test::PlanOf(c);
  CheckPlan(good, c.mesh, 1);
  for (const std::string wrong : {"muon_collect", "muon_return"}) {
    StepPlan plan = good;
    for (Body& body : plan.bodies)
      for (PlanOp& op : body.ops)
        if (op.label.starts_with(wrong)) std::get<AllToAllOp<View>>(op.op).axes = Axis::kReplicate;
    CAPTURE(wrong);
    REQUIRE_THROWS_WITH(CheckPlan(plan, c.mesh, 1),
                        Catch::Contains("goes over replicate, but the shards of"));
  }
}

// Blocks of which shards of two are sent in each turn, of two turns a round.
TEST_CASE("turns without flats send no shards", "[plan][muon]") {
  for (const size_t blocks : {2, 3, 4, 5}) {
    test::PlanCase c;
    c.model = ByMuon(test::Divisible(test::TinyLlama()));
    c.model.blocks.resize(blocks, c.model.blocks.front());
    c.model.tensor = 2;
    c.mesh = Mesh(1, 2).With(Axis::kTensor, 2);
    const StepPlan plan = test::PlanOf(c);
    const auto turns = static_cast<int>((blocks + 1) / 2), rounds = (turns + 1) / 2;
    CAPTURE(blocks);
    CHECK(CountOf<AllToAllOp>(plan) == 2 * (turns + rounds));
    CheckPlan(plan, c.mesh, 1);
    // What no rank sends is zero, all of it, before others work on it.
    StepPlan stale = plan;
    int short_ones = 0;
    for (Body& body : stale.bodies)
      for (PlanOp& op : body.ops)
        if (op.label.starts_with("muon_idle_turns")) {
          auto& ranges = std::get<ZeroRangesOp<View>>(op.op).ranges;
          REQUIRE(ranges->size() == 1);
          const Range all = ranges->front();
          ranges = std::make_shared<const std::vector<Range>>(1, Range{all.begin, all.end - 1});
          ++short_ones;
        }
    CHECK(short_ones == turns % 2);
    if (short_ones > 0) CHECK_THROWS_WITH(CheckPlan(stale, c.mesh, 1), Catch::Contains("muon_"));
  }
}

// Blocks of one unit each, or two, whose shards are whole matrices of a part of the columns.
TEST_CASE("the proof knows along which axes parts of matrices are exchanged", "[plan][muon]") {
  for (const int64_t blocks : {1, 2}) {
    test::PlanCase c;
    c.model = ByMuon(test::Divisible(test::TinyLlama()));
    c.model.blocks.resize(4, c.model.blocks.front());
    c.model.blocks_per_unit = blocks;
    c.model.tensor = 2;
    c.mesh = Mesh(2, 2).With(Axis::kTensor, 2);
    const StepPlan good = test::PlanOf(c);
    CheckPlan(good, c.mesh, 1);
    CHECK(CountOf<AllToAllOp>(good) == (blocks == 1 ? 2 * (2 + 1) : 2));
    for (const std::string of : {"muon_collect", "muon_join", "muon_part", "muon_return"})
      for (const Axis wrong : {Axis::kReplicate, Axis::kShard, Axis::kTensor}) {
        const bool shards = of == "muon_collect" || of == "muon_return";
        if (wrong == (shards ? Axis::kShard : Axis::kTensor) || (shards && blocks == 2)) continue;
        StepPlan plan = good;
        for (Body& body : plan.bodies)
          for (PlanOp& op : body.ops)
            if (op.label.starts_with(of)) std::get<AllToAllOp<View>>(op.op).axes = wrong;
        CAPTURE(blocks, of, ToString(wrong));
        REQUIRE_THROWS_WITH(CheckPlan(plan, c.mesh, 1),
                            Catch::Contains("goes over " + ToString(wrong) + ", but the "));
      }
  }
}

TEST_CASE("the hash sees what Muon is told", "[plan][muon]") {
  const std::string usual = PlanHash(test::PlanOf(CaseOf(2)));
  std::vector<test::PlanCase> others(9, CaseOf(2));
  others[0].options.muon.momentum = 0.9;
  others[1].options.muon.nesterov = false;
  others[2].options.muon.steps = 4;
  others[3].options.muon.coefficients[1] = -4;
  others[4].options.muon.eps = 1e-6;
  others[5].options.muon.adjust = MuonAdjust::kOriginal;
  others[6].options.muon.lr_scale = 2;
  others[7].options.muon.weight_decay = 0.2;
  others[8].options.muon.batch_numel = 1;
  for (size_t i = 0; i < others.size(); ++i) {
    CAPTURE(i);
    CHECK(PlanHash(test::PlanOf(others[i])) != usual);
  }
}

}  // namespace
}  // namespace millrace
