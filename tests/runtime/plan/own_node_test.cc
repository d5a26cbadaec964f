// A kind of node that the runtime does not know, defined here whole: builder, gradient rule with
// two outputs, lowering, recompute class and FLOPs. A model trains with it like with any other.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/schedule/recompute.h"
#include "tests/support/program_interpreter.h"

namespace millrace {
namespace {

// --- The node.  in: x [R,K], weight [N,K]   out: y = gelu(pre), pre = x weight^T

struct ExpandAttrs {
  int64_t factor = 0;  // N / K
};

extern const NodeDef kExpandGradNode;

// Either output may be without a gradient. One node forms both that it has: of x and of the weight.
void ExpandGradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]), d_pre = d.GradientOf(n.outputs[1]);
  if (!d_y && !d_pre) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(kExpandGradNode, {n.inputs[0], n.inputs[1], n.outputs[1], d_y, d_pre}, {d_x},
         {d.ParamGrad(n.inputs[1])}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}

void LowerExpand(Lowering& l, const Step& step) {
  MatmulOp<View> op;
  op.epilogue = Epilogue::kGelu;
  op.a = l.storage().Read(step.node->inputs[0]);
  op.b = Transposed(l.storage().Read(step.node->inputs[1]));
  op.out = l.storage().Write(step.node->outputs[0]);
  op.pre = l.storage().Write(step.node->outputs[1]);
  l.Push(op, *step.node);
}

// in: x, weight, pre, d_y?, d_pre?   out: d_x   grad: weight
void LowerExpandGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const View x = storage.Read(node.inputs[0]), weight = storage.Read(node.inputs[1]),
             pre = storage.Read(node.inputs[2]), d_y = storage.Read(node.inputs[3]),
             d_pre = storage.Read(node.inputs[4]);
  View total = d_pre;
  if (d_y) {
    ActivationGradOp<View> gelu;
    gelu.x = pre;
    gelu.d_out = d_y;
    gelu.d_x = total = storage.Temporary(node.label + "/d_gelu", pre.layout);
    l.Push(gelu, node, "/gelu");
  }
  if (d_y && d_pre) {
    AddOp<View> add;
    add.a = add.out = total;
    add.b = d_pre;
    l.Push(add, node, "/add");
  }
  MatmulOp<View> d_weight;
  d_weight.a = Transposed(total);
  d_weight.b = x;
  d_weight.out = storage.Grad(node.grads[0], d_weight.update);
  d_weight.rounding = Rounding::kOnce;
  l.Push(d_weight, node, "/d_weight");
  MatmulOp<View> d_x;
  d_x.a = total;
  d_x.b = weight;
  d_x.out = storage.Write(node.outputs[0]);
  l.Push(d_x, node, "/d_x");
}

FlopsPerToken ExpandFlops(const SemanticGraph& graph, const Node& node) {
  const auto k = static_cast<double>(graph.value(node.inputs[1]).dims[1]);
  const double flops = 2 * k * k * static_cast<double>(Attrs<ExpandAttrs>(node).factor);
  return {flops, flops};
}

constexpr NodeDef Expand(RecomputeClass recompute) {
  return {.name = "expand",
          .recompute = recompute,
          .gradient = ExpandGradient,
          .lower = LowerExpand,
          .flops = ExpandFlops};
}
constexpr NodeDef kDearExpand = Expand(RecomputeClass::kDear),
                  kCheapExpand = Expand(RecomputeClass::kCheap),
                  kKeptExpand = Expand(RecomputeClass::kNever);
const NodeDef kExpandGradNode{.name = "expand_grad", .lower = LowerExpandGrad};

struct Expanded {
  ValueId y, pre;
};
Expanded EmitExpand(ForwardBuilder& b, const NodeDef& kind, ValueId x, const std::string& weight,
                    const std::string& label) {
  const ValueId w = b.Param(weight, label);
  const int64_t columns = b.Columns(x, label), width = b.RowsOfMatrix(w, columns, label);
  const ValueId y = b.NewActivation(label, {b.shape().rows(), width}),
                pre = b.NewActivation(label + ".pre", {b.shape().rows(), width});
  b.Push(kind, {x, w}, {y, pre}, ExpandAttrs{width / columns}, label);
  return {y, pre};
}

// --- A model of it: x + down(y) + skip(pre) in each of two blocks.

enum class Uses { kBoth, kGelu, kPre };

constexpr int64_t kWidth = 6, kVocab = 11, kBatch = 2, kSeq = 5, kFactor = 3;

ModelSpec SpecOf() {
  const auto matrix = [](const std::string& name, int64_t rows, int64_t columns) {
    return ParamSpec{.name = name,
                     .dims = {rows, columns},
                     .padded_rows = rows,
                     .init = InitKind::kNormal,
                     .kind = ParamKind::kMatrix};
  };
  ModelSpec spec;
  spec.family = "expanding";
  spec.vocab = spec.padded_vocab = kVocab;
  spec.d_model = kWidth;
  spec.seq_len = kSeq;
  spec.units.push_back({"in", {matrix("table", kVocab, kWidth)}, UnitRole::kEmbedding});
  for (const std::string u : {"first", "second"})
    spec.units.push_back(
        {u,
         {matrix(u + ".w", kFactor * kWidth, kWidth), matrix(u + ".down", kWidth, kFactor * kWidth),
          matrix(u + ".skip", kWidth, kFactor * kWidth)},
         UnitRole::kBlock});
  spec.units.push_back({"out", {matrix("logits", kVocab, kWidth)}, UnitRole::kHead});
  return spec;
}

// `kind` null: of the runtime's own nodes.
SemanticGraph ForwardOf(const NodeDef* kind, Uses uses) {
  ForwardBuilder b(SpecOf(), {.batch = kBatch, .seq = kSeq}, DType::kF32, DType::kF32);
  b.BeginUnit("in");
  ValueId x = Embedding(b, "table", "", "x");
  for (const std::string u : {"first", "second"}) {
    b.BeginUnit(u);
    Expanded e;
    if (kind != nullptr) {
      e = EmitExpand(b, *kind, x, u + ".w", u + "/expand");
    } else {
      e.pre = Linear(b, x, u + ".w", "", u + "/pre");
      e.y = Activation(b, e.pre, ActivationKind::kGelu, u + "/gelu");
    }
    if (uses != Uses::kPre) x = Add(b, x, Linear(b, e.y, u + ".down", "", u + "/down"), u + "/add");
    if (uses != Uses::kGelu)
      x = Add(b, x, Linear(b, e.pre, u + ".skip", "", u + "/skip"), u + "/add2");
  }
  b.BeginUnit("out");
  Head(b, x, "logits", HeadMode::kTrainLoss);
  return std::move(b).Finish();
}

// --- Numbers.

std::vector<std::vector<float>> Weights() {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 0.5f);
  std::vector<std::vector<float>> weights;
  for (const UnitSpec& unit : SpecOf().units)
    for (const ParamSpec& param : unit.params) {
      weights.emplace_back(static_cast<size_t>(param.numel()));
      for (float& w : weights.back()) w = normal(random);
    }
  return weights;
}

struct Outcome {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  bool operator==(const Outcome&) const = default;
};

Outcome Run(const Program& program, const std::vector<std::vector<float>>& weights) {
  test::ProgramInterpreter interpreter(program, CpuKernels());
  interpreter.scalars().inv_valid_tokens = 1.0 / (kBatch * kSeq);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kBatch * (kSeq + 1); ++i) tokens.push_back(i * i % kVocab);
  interpreter.SetTokens(tokens);
  for (size_t p = 0; p < weights.size(); ++p)
    interpreter.SetParam(ParamId{static_cast<int32_t>(p)}, weights[p]);
  interpreter.Run();
  Outcome outcome{interpreter.loss(), {}};
  for (size_t p = 0; p < weights.size(); ++p)
    outcome.gradients.push_back(interpreter.Gradient(ParamId{static_cast<int32_t>(p)}));
  return outcome;
}

Program ProgramOf(const NodeDef* kind, Uses uses, Recompute recompute = Recompute::kNone) {
  return Lower(AddGradients(ForwardOf(kind, uses), recompute),
               {.fuse_residual_norm = false, .fuse_bias_gelu = false});
}

TEST_CASE("a node of one's own has the bits of those it is made of, whichever outputs are used",
          "[plan][nodes]") {
  const Uses uses = GENERATE(Uses::kBoth, Uses::kGelu, Uses::kPre);
  CAPTURE(static_cast<int>(uses));
  const Outcome parts = Run(ProgramOf(nullptr, uses), Weights());
  const Outcome own = Run(ProgramOf(&kDearExpand, uses), Weights());
  REQUIRE(std::isfinite(parts.loss));
  CHECK(own == parts);
  // What the loss does not depend on has no gradient.
  for (const size_t down : {size_t{2}, size_t{5}}) {
    CHECK(own.gradients[down].empty() == (uses == Uses::kPre));
    CHECK(own.gradients[down + 1].empty() == (uses == Uses::kGelu));
  }
}

TEST_CASE("its recompute class decides which policies compute it again, at the same bits",
          "[plan][nodes]") {
  struct Expected {
    const NodeDef* kind;
    bool norms, block;  // again by these policies?
  };
  const Expected expected =
      GENERATE(Expected{&kCheapExpand, true, true}, Expected{&kDearExpand, false, true},
               Expected{&kKeptExpand, false, false});
  const Outcome none = Run(ProgramOf(expected.kind, Uses::kBoth), Weights());
  for (const Recompute policy : {Recompute::kNone, Recompute::kNorms, Recompute::kBlock}) {
    const SemanticGraph graph = AddGradients(ForwardOf(expected.kind, Uses::kBoth), policy);
    int again = 0;
    for (const Node& node : graph.backward) again += node.recomputed && node.kind == expected.kind;
    const bool wanted = policy == Recompute::kNorms   ? expected.norms
                        : policy == Recompute::kBlock ? expected.block
                                                      : false;
    CAPTURE(Name(policy));
    CHECK(again == (wanted ? 2 : 0));
    CHECK(Run(ProgramOf(expected.kind, Uses::kBoth, policy), Weights()) == none);
  }
}

TEST_CASE("a model with it is planned, proved and trained", "[plan][nodes]") {
  const Program program = ProgramOf(&kCheapExpand, Uses::kBoth);
  PlanOptions options;
  options.shape = {.batch = kBatch, .seq = kSeq};
  options.accumulate = GENERATE(1, 3);
  const Mesh mesh(1, GENERATE(1, 3));
  const ShardLayout layout = PlanShards(SpecOf(), mesh, {});
  const StepPlan plan =
      PlanStep(layout, PlanStates(layout, options, {&program}), program, options, "train");
  CHECK(FindViolations(plan, mesh, options.accumulate).empty());

  std::vector<std::vector<float>> weights = Weights();
  const double first = Run(program, weights).loss;
  double last = first;
  for (int step = 0; step < 200; ++step) {
    const Outcome outcome = Run(program, weights);
    last = outcome.loss;
    for (size_t p = 0; p < weights.size(); ++p)
      for (size_t i = 0; i < weights[p].size(); ++i)
        weights[p][i] -= 0.1f * outcome.gradients[p][i];
  }
  CAPTURE(first, last);
  CHECK(last < 0.2 * first);
}

TEST_CASE("the search for recomputation has a prefix of its own for each cheap kind",
          "[plan][recompute]") {
  const SemanticGraph forward = ForwardOf(&kCheapExpand, Uses::kBoth);
  const ShardLayout layout = PlanShards(SpecOf(), {}, {});
  PlanOptions options;
  options.shape = {.batch = kBatch, .seq = kSeq};
  const auto arena = [&](Recompute policy) {
    const Program program = Lower(AddGradients(forward, policy), {});
    return PlanStep(layout, PlanStates(layout, options, {&program}), program, options, "train")
        .arena_bytes;
  };
  const int64_t none = arena(Recompute::kNone), cheap = arena(Recompute::kNorms);
  REQUIRE(cheap < none);
  options.budget_bytes = cheap;
  const Program alone = Lower(forward, {});
  const RecomputeChoice choice =
      ChooseRecompute({layout, PlanStates(layout, options, {&alone}), forward, {}, options, 0});
  CHECK(ToString(choice.counts).starts_with("expands in "));
  CHECK(choice.counts.everything == 0);
}

TEST_CASE("its FLOPs are counted", "[plan][flops]") {
  const double matrices = 2 * (3 * kFactor * kWidth * kWidth) + kVocab * kWidth;
  const FlopsPerToken flops = TrainFlopsPerToken(ForwardOf(&kDearExpand, Uses::kBoth));
  CHECK(flops == FlopsPerToken{6 * matrices, 6 * matrices});
}

TEST_CASE("a node without a rule or a lowering is named when one is needed", "[plan][nodes]") {
  NodeDef lame = kDearExpand;
  lame.gradient = nullptr;
  CHECK_THROWS_WITH(AddGradients(ForwardOf(&lame, Uses::kBoth), Recompute::kNone),
                    Catch::Contains("second/expand: expand has no gradient"));
  lame.lower = nullptr;
  CHECK_THROWS_WITH(Lower(ForwardOf(&lame, Uses::kBoth), {}),
                    Catch::Contains("first/expand: expand has no lowering"));
  SemanticGraph graph = ForwardOf(&kDearExpand, Uses::kBoth);
  graph.forward[1].attrs = ActivationAttrs{};
  CHECK_THROWS_WITH(TrainFlopsPerToken(graph), Catch::Contains("attributes of another type"));
}

}  // namespace
}  // namespace millrace
