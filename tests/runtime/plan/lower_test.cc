#include "runtime/plan/lower/lower.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "kernels/ops/sample_ops.h"
#include "models/model.h"
#include "runtime/base/error.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/attention/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/sample.h"
#include "tests/support/golden.h"
#include "tests/support/symbolic.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

using test::ForwardOf;
using test::TinyGpt2;
using test::TinyLlama;

const std::string kGolden = "tests/runtime/plan/golden/";

LowerOptions Options(bool fused, int64_t chunk_rows) {
  return {.backend = Backend::kCpu,
          .fuse_residual_norm = fused,
          .fuse_bias_gelu = fused,
          .loss_chunk_rows = chunk_rows};
}

TEST_CASE("a program prints its buffers and one line per op", "[plan][lower]") {
  const SemanticGraph gpt2 = AddGradients(ForwardOf(TinyGpt2()), Recompute::kNone);
  test::RequireGolden(kGolden + "gpt2_program_fused.txt", ToString(Lower(gpt2, Options(true, 6))));
  test::RequireGolden(kGolden + "gpt2_program_unfused.txt",
                      ToString(Lower(gpt2, Options(false, 6))));
  const SemanticGraph llama = AddGradients(
      ForwardOf(TinyLlama(), HeadMode::kTrainLoss, DType::kBF16, DType::kF32), Recompute::kBlock);
  test::RequireGolden(kGolden + "llama_program_fused.txt",
                      ToString(Lower(llama, Options(true, 512))));
  test::RequireGolden(kGolden + "llama_program_unfused.txt",
                      ToString(Lower(llama, Options(false, 512))));
  test::RequireGolden(
      kGolden + "gpt2_program_eval.txt",
      ToString(Lower(ForwardOf(TinyGpt2(), HeadMode::kEvalLoss), Options(true, 6))));
  test::RequireGolden(kGolden + "llama_program_logits.txt",
                      ToString(Lower(ForwardOf(TinyLlama(), HeadMode::kLogits), Options(true, 6))));
}

// Every model, policy and lowering: the program computes the graph's expressions, nothing read
// unwritten or overwritten too early, and each gradient has one overwrite, first, then
// accumulations, in the graph's order.
TEST_CASE("a program computes exactly the expressions of its graph", "[plan][lower]") {
  ModelOptions options =
      GENERATE(TinyGpt2(3), TinyLlama(3), test::TinyQwen3(3), test::TinyNemotronH());
  options.tied = GENERATE(true, false);
  options.blocks_per_unit = GENERATE(1, 2);
  const Recompute policy = GENERATE(Recompute::kNone, Recompute::kNorms, Recompute::kBlock);
  const bool fuse_norm = GENERATE(true, false), fuse_gelu = GENERATE(true, false);
  const int64_t chunk_rows = GENERATE(1, 5, 7, 14, 512);
  const SemanticGraph graph = AddGradients(ForwardOf(options), policy);
  LowerOptions lower = Options(fuse_norm, chunk_rows);
  lower.fuse_bias_gelu = fuse_gelu;
  const int64_t rows = graph.shape.rows(), chunk = std::min(chunk_rows, rows);
  const test::Symbols expected = test::Evaluate(graph, (rows + chunk - 1) / chunk);
  CAPTURE(options.family, options.tied, static_cast<int>(policy), fuse_norm, fuse_gelu, chunk_rows);
  const auto is_param = [](const Value& value) { return value.role == ValueRole::kParam; };
  REQUIRE(std::count_if(graph.values.begin(), graph.values.end(), is_param) ==
          static_cast<int64_t>(expected.gradients.size()));
  REQUIRE(test::Execute(Lower(graph, lower)) == expected);
}

// Two losses that read one table through two heads, and the table once more as the embedding: all
// their contributions end in its gradient.
TEST_CASE("of all losses' contributions to a gradient the first alone overwrites",
          "[plan][lower]") {
  ModelSpec spec;
  spec.family = "two_heads";
  spec.vocab = spec.padded_vocab = 5;
  spec.losses = {{.name = "main"}, {.name = "aux", .weight = 0.3}};
  const auto matrix = [](std::string name, int64_t rows) {
    return ParamSpec{.name = std::move(name), .dims = {rows, 3}, .padded_rows = rows};
  };
  spec.units = {{"h.0", {matrix("table", 5), matrix("w", 3)}}};
  ForwardBuilder builder(spec, {.batch = 1, .seq = 6}, DType::kF32, DType::kF32);
  builder.BeginUnit("h.0");
  const ValueId x = Embedding(builder, "table", "", "x");
  for (const LossSpec& loss : spec.losses)
    Head(builder, Linear(builder, x, "w", "", "w." + loss.name), "table", HeadMode::kTrainLoss,
         loss.name);
  const SemanticGraph graph = AddGradients(std::move(builder).Finish(), Recompute::kNone);
  const int64_t chunk_rows = GENERATE(2, 6);
  const Program program = Lower(graph, Options(true, chunk_rows));
  std::map<std::string, std::vector<Update>> updates;
  for (const std::vector<ProgramOp>* ops : {&program.forward, &program.backward})
    for (const ProgramOp& op : *ops) {
      KernelOp kernel = op.op;
      ForEachView(kernel, [&](View& view, const Update* update, std::string_view) {
        if (!view) return;
        const ProgramBuffer& buffer = program.buffer(view.buffer);
        if (buffer.role == ProgramRole::kParamGrad) updates[buffer.name].push_back(*update);
      });
    }
  // By two heads in chunks and by the embedding; by the products of both trunks.
  std::map<std::string, std::vector<Update>> expected = {
      {"d(table)", std::vector(static_cast<size_t>(2 * 6 / chunk_rows + 1), Update::kAccumulate)},
      {"d(w)", std::vector(2, Update::kAccumulate)}};
  for (auto& [name, of] : expected) of.front() = Update::kOverwrite;
  CHECK(updates == expected);
}

TEST_CASE("evaluation and generation compute their expressions, and keep nothing for a backward",
          "[plan][lower]") {
  const ModelOptions options =
      GENERATE(TinyGpt2(2), TinyLlama(2), test::TinyQwen3(2), test::TinyNemotronH());
  const HeadMode mode = GENERATE(HeadMode::kEvalLoss, HeadMode::kLogits);
  const bool fused = GENERATE(true, false);
  const SemanticGraph graph = ForwardOf(options, mode);
  const Program program = Lower(graph, Options(fused, 5));
  const test::Symbols symbols = test::Execute(program);
  CHECK(symbols == test::Evaluate(graph, 3));
  CHECK((mode == HeadMode::kEvalLoss ? symbols.loss : symbols.logits) != 0);
  CHECK(symbols.gradients.empty());
  CHECK(program.backward.empty());
  for (const ProgramOp& op : program.forward) {
    if (const auto* matmul = std::get_if<MatmulOp<View>>(&op.op)) CHECK_FALSE(matmul->pre);
    if (const auto* loss = std::get_if<CrossEntropyOp<View>>(&op.op))
      CHECK(loss->output == LossOutput::kLossOnly);
  }
}

const NodeDef kParamsNode{.name = "params", .lower = [](Lowering& l, const Step& step) {
                            l.storage().Write(step.node->outputs[0]);
                          }};

TEST_CASE("the sampler's results are outputs, by their names", "[plan][lower]") {
  const std::unique_ptr<Model> model = MakeModel(TinyLlama());
  for (const int64_t most : {0, 3}) {
    ForwardBuilder b(model->spec(), {.batch = 2, .seq = 7}, DType::kF32, DType::kF32);
    model->EmitForward(b, HeadMode::kLogits);
    const ValueId logits = b.graph().forward.back().outputs[0];
    const auto params = [&](int64_t words) {
      const ValueId value = b.NewValue("params", ValueRole::kConstant, DType::kI64, {1, words});
      b.PushConstant(kParamsNode, value, {}, "params");
      return value;
    };
    CHECK_THROWS_AS(Sample(b, logits, params(kSampleWords + 1), most, "head/sample"), Error);
    CHECK_THROWS_AS(Sample(b, logits, params(kSampleWords), kMaxSampleTop + 1, "head/sample"),
                    Error);
    const ValueId of_rows = params(kSampleWords);
    Sample(b, logits, of_rows, most, "head/sample");
    const int64_t vocab = b.graph().vocab;
    const Program program = Lower(std::move(b).Finish(), Options(true, 6));
    const auto* op = std::get_if<SampleOp<View>>(&program.forward.back().op);
    REQUIRE(op != nullptr);
    CHECK(op->vocab == vocab);
    CHECK(program.buffer(op->logits.buffer).role == ProgramRole::kLogits);
    CHECK(program.buffer(op->params.buffer).name == "params");
    std::string outputs;
    for (const ProgramBuffer& buffer : program.buffers)
      if (buffer.role == ProgramRole::kOutput)
        outputs += buffer.name + " " + ToString(buffer.layout) + "; ";
    CHECK(outputs == (most == 0 ? "token i32[1]; logprob f32[1]; "
                                : "token i32[1]; logprob f32[1]; top_ids i32[1, 3]; "
                                  "top_logprobs f32[1, 3]; "));
    CHECK(static_cast<bool>(op->top_ids) == (most > 0));
  }
}

// The check above must be able to fail: point one operand at another buffer of the
// same layout, and it does.
TEST_CASE("an operand in the wrong buffer is noticed", "[plan][lower]") {
  // Without recomputation: a recomputed value and its original are the same expression.
  const SemanticGraph graph = AddGradients(ForwardOf(TinyLlama(2)), Recompute::kNone);
  const Program program = Lower(graph, Options(true, 512));
  const test::Symbols expected = test::Evaluate(graph, 1);
  REQUIRE(test::Execute(program) == expected);
  const auto is_activation = [&](const View& view) {
    return program.buffers[static_cast<size_t>(view.buffer.value)].role == ProgramRole::kActivation;
  };
  // Results that nothing reads: where they lie cannot matter.
  const std::set<std::string> unread = {"lse", "mean", "rstd"};
  int mutants = 0, noticed = 0;
  for (std::vector<ProgramOp> Program::*section : {&Program::forward, &Program::backward})
    for (size_t i = 0; i < (program.*section).size(); ++i) {
      int operand = 0;
      ForEachUse((program.*section)[i].op, [&](const View& view, Access access,
                                               std::string_view name) {
        const int which = operand++;
        if (!is_activation(view) || (access != Access::kRead && unread.count(std::string(name))))
          return;
        Program mutant = program;
        BufferId other;
        for (size_t b = 0; b < program.buffers.size() && !other; ++b)
          if (static_cast<int>(b) != view.buffer.value &&
              program.buffers[b].role == ProgramRole::kActivation &&
              program.buffers[b].layout ==
                  program.buffers[static_cast<size_t>(view.buffer.value)].layout)
            other = BufferId{static_cast<int32_t>(b)};
        if (!other) return;
        int at = 0;
        ForEachView((mutant.*section)[i].op, [&](View& v, Update*, std::string_view) {
          if (at++ == which) v.buffer = other;
        });
        ++mutants;
        bool same = false;
        try {
          same = test::Execute(mutant) == expected;
        } catch (const std::logic_error&) {
        }
        if (!same) ++noticed;
        INFO((program.*section)[i].label << " " << name);
        CHECK_FALSE(same);
      });
    }
  CHECK(mutants > 100);
  CHECK(noticed == mutants);
}

int64_t ActivationBytes(const Program& program) {
  int64_t bytes = 0;
  for (const ProgramBuffer& buffer : program.buffers)
    if (buffer.role == ProgramRole::kActivation) bytes += buffer.layout.span_bytes();
  return bytes;
}

template <class Op>
int64_t CountOps(const Program& program) {
  int64_t n = 0;
  for (const auto* ops : {&program.forward, &program.backward})
    for (const ProgramOp& op : *ops) n += std::holds_alternative<Op>(op.op);
  return n;
}

TEST_CASE("each fusion visibly takes effect", "[plan][lower]") {
  constexpr int64_t kLayers = 3;
  const SemanticGraph graph = AddGradients(ForwardOf(TinyGpt2(kLayers)), Recompute::kNone);
  LowerOptions options = Options(false, 512);
  const Program plain = Lower(graph, options);
  options.fuse_residual_norm = true;
  const Program norms = Lower(graph, options);
  options.fuse_bias_gelu = true;
  const Program both = Lower(graph, options);
  // Each block adds twice in the forward and, where the two paths meet again, twice in the
  // backward.
  CHECK(CountOps<AddOp<View>>(plain) == 4 * kLayers);
  CHECK(CountOps<AddOp<View>>(norms) == 0);
  CHECK(CountOps<ActivationOp<View>>(norms) == kLayers);
  CHECK(CountOps<ActivationOp<View>>(both) == 0);
  CHECK(CountOps<ActivationGradOp<View>>(norms) == kLayers);
  CHECK(CountOps<ActivationGradOp<View>>(both) == 0);
  CHECK(ActivationBytes(both) <= ActivationBytes(norms));
  CHECK(norms.choices.size() == plain.choices.size() + 4 * kLayers);
  CHECK(both.choices.size() == norms.choices.size() + 2 * kLayers);
}

TEST_CASE("GELU's gradient keeps a kernel of its own where the product before it could not form it",
          "[plan][lower]") {
  SemanticGraph graph = AddGradients(ForwardOf(TinyGpt2(1)), Recompute::kNone);
  const auto grad =
      std::find_if(graph.backward.begin(), graph.backward.end(),
                   [](const Node& node) { return node.kind == &kActivationGradNode; });
  REQUIRE(grad != graph.backward.end());
  const auto new_value = [&](ValueId like) {
    Value value = graph.value(like);
    value.name += "/again";
    graph.values.push_back(value);
    return ValueId{static_cast<int32_t>(graph.values.size()) - 1};
  };
  SECTION("the product is read twice") {
    Node second = *grad;
    second.label += ":again";
    second.outputs[0] = new_value(second.outputs[0]);
    graph.backward.insert(grad + 1, second);
  }
  SECTION("what went into GELU is formed again after the product") {
    const auto up = std::find_if(graph.forward.begin(), graph.forward.end(), [&](const Node& node) {
      return !node.outputs.empty() && node.outputs[0] == grad->inputs[0];
    });
    REQUIRE(up != graph.forward.end());
    Node again = *up;
    again.recomputed = true;
    again.label += ":again";
    again.outputs[0] = grad->inputs[0] = new_value(again.outputs[0]);
    graph.backward.insert(grad, again);
  }
  const LowerOptions options = Options(true, 512);
  const Program program = Lower(graph, options);
  CHECK(CountOps<ActivationGradOp<View>>(program) > 0);
  CHECK(test::Execute(program) == test::Evaluate(graph, 1));
}

TEST_CASE("logits exist for one chunk of rows at a time", "[plan][lower]") {
  const int64_t chunk_rows = GENERATE(1, 4, 14, 100);
  const SemanticGraph graph = AddGradients(ForwardOf(TinyGpt2()), Recompute::kNone);  // 14 rows
  const Program program = Lower(graph, Options(true, chunk_rows));
  int64_t logits_rows = 0;
  for (const ProgramBuffer& buffer : program.buffers)
    if (buffer.role == ProgramRole::kActivation && buffer.layout.rank == 2 &&
        buffer.layout.dims[1] == 64)
      logits_rows += buffer.layout.dims[0];
  CHECK(logits_rows == std::min<int64_t>(chunk_rows, 14));
  int64_t next = 0;
  for (const ProgramOp& op : program.forward)
    if (const auto* loss = std::get_if<CrossEntropyOp<View>>(&op.op)) {
      CHECK(loss->row_begin == next);
      CHECK(loss->loss_update == (next == 0 ? Update::kOverwrite : Update::kAccumulate));
      next += loss->logits.layout.dims[0];
    }
  CHECK(next == 14);
}

TEST_CASE("what the backend cannot run is refused with op and value", "[plan][lower]") {
  ModelOptions options = TinyGpt2();
  *options.blocks[0].Find<AttentionShape>() = {.heads = 1, .kv_heads = 1, .head_dim = 100000};
  try {
    Lower(ForwardOf(options), Options(true, 512));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    CHECK_THAT(error.what(),
               Catch::Matchers::Contains("h.0/attn") && Catch::Matchers::Contains("100000"));
  }
}

// Sizes past a block of 128 that cuBLASLt takes.
ModelOptions GptOfMultiplesOf16() {
  ModelOptions options = TinyGpt2(2);
  options.d_model = 144;
  options.blocks = EqualBlocks(2, {.heads = 3, .kv_heads = 3, .head_dim = 48},
                               {.width = 160, .activation = ActivationKind::kGelu});
  options.seq_len = 16;
  return options;
}

TEST_CASE("a weight gathered in FP8 is quantized nowhere; on CUDA it is turned for its other sum",
          "[plan][lower]") {
  const LinearEncoding linears = GENERATE(LinearEncoding::kFp8Tensor, LinearEncoding::kFp8Block);
  const Recompute recompute = GENERATE(Recompute::kNone, Recompute::kBlock);
  LowerOptions lower = Options(true, 512);
  lower.backend = GENERATE(Backend::kCpu, Backend::kCuda);
  lower.gather = WeightGather::kLinear;
  const ModelOptions options = GptOfMultiplesOf16();
  const std::unique_ptr<Model> model = MakeModel(options);
  ForwardBuilder builder(model->spec(), {.batch = 2, .seq = options.seq_len}, DType::kBF16,
                         DType::kF32);
  builder.EncodeLinears(linears);
  model->EmitForward(builder, HeadMode::kTrainLoss);
  const Program program = Lower(AddGradients(std::move(builder).Finish(), recompute), lower);
  const auto quantizes_weight = [](const ProgramOp& op) {
    return op.label.ends_with(":quantize_weight");
  };
  for (const auto* ops : {&program.forward, &program.backward})
    CHECK(std::none_of(ops->begin(), ops->end(), quantizes_weight));
  const auto role = [&](const View& view) { return program.buffer(view.buffer).role; };
  std::set<BufferId> turned;
  for (const ProgramOp& op : program.backward)
    if (const auto* turn = std::get_if<TurnOp<View>>(&op.op)) {
      INFO(op.label);
      CHECK(role(turn->payload) == ProgramRole::kParam);
      CHECK(static_cast<bool>(turn->scales) == (linears == LinearEncoding::kFp8Block));
      if (turn->scales) CHECK(role(turn->scales) == ProgramRole::kParamScales);
      CHECK(turned.insert(turn->payload.buffer).second);
    }
  // Four linears of each of two blocks.
  CHECK(std::ssize(turned) == (lower.backend == Backend::kCuda ? 8 : 0));
  CHECK(CountOps<TurnOp<View>>(program) == std::ssize(turned));
}

TEST_CASE("a rotation whose input is read again cannot happen in place, and is refused",
          "[plan][lower]") {
  SemanticGraph graph = ForwardOf(TinyLlama());
  for (Node& node : graph.forward)
    if (node.kind == &kAttentionNode)
      node.inputs[0] = graph.forward[2].outputs[0];  // qkv before the rotation
  CHECK_THROWS_WITH(Lower(graph, Options(true, 512)), Catch::Matchers::Contains("h.0/attn.rope"));
}

}  // namespace
}  // namespace millrace
