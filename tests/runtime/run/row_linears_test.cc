// Which ops of a step that decodes one row on a GPU are one, and what ops may read early.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <variant>
#include <vector>

#include "runtime/config/load.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/schedule/constants.h"
#include "runtime/run/assemble.h"
#include "runtime/run/generate/inference_plans.h"

namespace millrace {
namespace {

using Sets = std::vector<std::string>;
using Row = RowLinearOp<View>;

AssembledRun Plans(const Sets& model, Backend backend, int world = 1) {
  Sets sets = {"data.kind=synthetic",    "model.layers=2",         "model.d_model=64",
               "model.heads=4",          "model.vocab=100",        "model.seq_len=32",
               "train.micro_batch=1",    "inference.slots=4",      "inference.decode=[1,4]",
               "inference.prefill=[16]", "precision.compute=bf16", "precision.norms=compute"};
  sets.insert(sets.end(), model.begin(), model.end());
  const LoadedConfig loaded =
      LoadConfig({}, sets, {.world = world, .has_cuda = backend == Backend::kCuda});
  return Assemble(loaded.config, world, {.backend = backend}, {std::string(kInferencePlans)});
}
const Sets kLlama = {"model.family=llama", "model.kv_heads=2", "model.ffn=96"};
const Sets kGpt2 = {"model.family=gpt2"};
// Of products in order.
const Sets kExact = {"inference.exact=true", "model.d_model=128", "model.heads=2"};
Sets Exact(Sets model) {
  model.insert(model.end(), kExact.begin(), kExact.end());
  return model;
}
const Sets kExactLlama = Exact({"model.family=llama", "model.kv_heads=1", "model.ffn=96"});

const std::vector<PlanOp>& StepOf(const StepPlan& plan) { return plan.body(plan.schedule[0]).ops; }
std::vector<std::string> NamesOf(const StepPlan& plan) {
  std::vector<std::string> names;
  for (const PlanOp& op : StepOf(plan)) names.emplace_back(OpName(op.op));
  return names;
}
std::vector<Row> RowsOf(const StepPlan& plan) {
  std::vector<Row> rows;
  for (const PlanOp& op : StepOf(plan))
    if (const auto* row = std::get_if<Row>(&op.op)) rows.push_back(*row);
  return rows;
}
const PlanOp& OpOf(const StepPlan& plan, const std::string& label) {
  const auto& ops = StepOf(plan);
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const PlanOp& op) { return op.label == label; });
  REQUIRE(found != ops.end());
  return *found;
}

TEST_CASE("one row of a Llama is five kernels a layer", "[plan][infer]") {
  const AssembledRun run = Plans(kLlama, Backend::kCuda);
  const StepPlan& plan = run.plans.Of(DecodePlan(1));
  const std::vector<std::string> layer = {"row_linear", "cached_attention", "row_linear",
                                          "row_linear", "row_linear"};
  std::vector<std::string> expected = {"embed_rows"};
  for (int l = 0; l < 2; ++l) expected.insert(expected.end(), layer.begin(), layer.end());
  expected.insert(expected.end(), {"row_linear", "sample"});
  CHECK(NamesOf(plan) == expected);
  const std::vector<Row> rows = RowsOf(plan);
  REQUIRE(rows.size() == 9);
  const RowFinish finishes[] = {RowFinish::kRotate, RowFinish::kNone, RowFinish::kSwiglu,
                                RowFinish::kNone};
  const RowNorm norms[] = {RowNorm::kRms, RowNorm::kNone, RowNorm::kRms, RowNorm::kNone};
  for (size_t i = 0; i < 8; ++i) {
    INFO("product " << i);
    CHECK(rows[i].finish == finishes[i % 4]);
    CHECK(rows[i].norm == norms[i % 4]);
    CHECK(rows[i].constant);
  }
  CHECK(rows[0].turned == 6);  // heads of queries and keys
  CHECK(rows[2].out.layout.dims[1] == 96);
  // The head's results are the logits that are drawn from.
  CHECK(rows[8].norm == RowNorm::kRms);
  CHECK(rows[8].out.layout.dtype == DType::kF32);
  CHECK(rows[8].out.buffer == plan.FindOutput("logits")->buffer);
  CHECK(std::get<SampleOp<View>>(StepOf(plan).back().op).logits.buffer == rows[8].out.buffer);
}

TEST_CASE("each norm adds the last branch to the stream that the norm before has left",
          "[plan][infer]") {
  for (const Sets& model : {kLlama, kGpt2, Exact(kGpt2)}) {
    const AssembledRun run = Plans(model, Backend::kCuda);
    const StepPlan& plan = run.plans.Of(DecodePlan(1));
    View stream = std::get<EmbedRowsOp<View>>(StepOf(plan)[0].op).out, branch;
    int norms = 0;
    for (const PlanOp& op : StepOf(plan)) {
      if (const auto* product = std::get_if<MatmulOp<View>>(&op.op)) branch = product->out;
      const Row* const linear = std::get_if<Row>(&op.op);
      if (linear == nullptr) continue;
      const Row& row = *linear;
      if (row.norm != RowNorm::kNone) {
        ++norms;
        if (branch) {
          CHECK(row.x.buffer == branch.buffer);
          CHECK(row.residual.buffer == stream.buffer);
          REQUIRE(row.sum);
          CHECK(row.sum.buffer != row.x.buffer);
          CHECK(row.sum.buffer != row.residual.buffer);
          stream = row.sum;
        } else {
          CHECK(row.x.buffer == stream.buffer);
          CHECK(!row.residual);
          CHECK(!row.sum);
        }
      }
      branch = row.out;
    }
    CHECK(norms == 5);
  }
}

TEST_CASE("one row of a GPT-2 has its biases and GELUs", "[plan][infer]") {
  const AssembledRun run = Plans(kGpt2, Backend::kCuda);
  const std::vector<Row> rows = RowsOf(run.plans.Of(DecodePlan(1)));
  REQUIRE(rows.size() == 9);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(rows[i].finish == (i % 4 == 2 ? RowFinish::kGelu : RowFinish::kNone));
    CHECK(rows[i].norm == (i % 2 == 0 ? RowNorm::kLayer : RowNorm::kNone));
    CHECK(static_cast<bool>(rows[i].norm_bias) == (i % 2 == 0));
    CHECK(rows[i].bias);
    CHECK(rows[i].constant);
  }
}

TEST_CASE("one row in order has its norms, biases and GELUs", "[plan][infer]") {
  const AssembledRun run = Plans(Exact(kGpt2), Backend::kCuda);
  const StepPlan& plan = run.plans.Of(DecodePlan(1));
  const std::vector<std::string> layer = {"row_linear", "cached_attention", "matmul", "row_linear",
                                          "matmul"};
  std::vector<std::string> expected = {"embed_rows"};
  for (int l = 0; l < 2; ++l) expected.insert(expected.end(), layer.begin(), layer.end());
  // What is drawn from are the product's own logits, which nobody widens.
  expected.insert(expected.end(), {"row_linear", "sample"});
  CHECK(NamesOf(plan) == expected);
  const std::vector<Row> rows = RowsOf(plan);
  REQUIRE(rows.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    INFO("product " << i);
    CHECK(rows[i].in_order);
    CHECK(rows[i].constant);
    CHECK(rows[i].finish == (i % 2 == 1 ? RowFinish::kGelu : RowFinish::kNone));
    CHECK(rows[i].norm == RowNorm::kLayer);
    CHECK(static_cast<bool>(rows[i].bias) == (i < 4));
    CHECK(rows[i].out.layout.dtype == DType::kBF16);
  }
  for (const Row& row : RowsOf(Plans(kGpt2, Backend::kCuda).plans.Of(DecodePlan(1))))
    CHECK(!row.in_order);
  const AssembledRun cpu = Plans(Exact(kGpt2), Backend::kCpu);
  for (const StepPlan& of : cpu.plans.plans) CHECK(RowsOf(of).empty());
}

TEST_CASE("rotations and SwiGLUs of one row in order are ops of their own", "[plan][infer]") {
  const AssembledRun run = Plans(kExactLlama, Backend::kCuda);
  const StepPlan& plan = run.plans.Of(DecodePlan(1));
  const std::vector<std::string> layer = {"row_linear", "rope_rows",  "cached_attention",
                                          "matmul",     "row_linear", "activation",
                                          "matmul"};
  std::vector<std::string> expected = {"embed_rows"};
  for (int l = 0; l < 2; ++l) expected.insert(expected.end(), layer.begin(), layer.end());
  expected.insert(expected.end(), {"row_linear", "sample"});
  CHECK(NamesOf(plan) == expected);
  for (const Row& row : RowsOf(plan)) {
    CHECK(row.in_order);
    CHECK(row.finish == RowFinish::kNone);
    CHECK(row.norm == RowNorm::kRms);
  }
}

TEST_CASE("a norm in order that is too wide for a block stays an op", "[plan][infer]") {
  Sets sets = Exact({"model.family=llama", "model.kv_heads=1", "model.ffn=96"});
  sets.insert(sets.end(), {"model.d_model=4224", "model.heads=66"});
  const AssembledRun run = Plans(sets, Backend::kCuda);
  const StepPlan& plan = run.plans.Of(DecodePlan(1));
  const std::vector<std::string> names = NamesOf(plan);
  CHECK(std::count(names.begin(), names.end(), "norm") == 5);
  CHECK(RowsOf(plan).empty());
}

TEST_CASE("several rows and CPUs have ops of their own", "[plan][infer]") {
  for (const Sets& model : {kLlama, kGpt2}) {
    const AssembledRun gpu = Plans(model, Backend::kCuda), cpu = Plans(model, Backend::kCpu);
    CHECK(RowsOf(gpu.plans.Of(DecodePlan(4))).empty());
    CHECK(RowsOf(gpu.plans.Of(PrefillPlan(16))).empty());
    for (const StepPlan& plan : cpu.plans.plans) CHECK(RowsOf(plan).empty());
    // A GPU draws several rows from the product's own results.
    const auto logits = [](const StepPlan& plan) {
      return std::get<SampleOp<View>>(StepOf(plan).back().op).logits;
    };
    CHECK(logits(gpu.plans.Of(DecodePlan(4))).layout == DenseLayout(DType::kBF16, {4, 128}));
    CHECK(logits(gpu.plans.Of(DecodePlan(4))).buffer ==
          std::get<MatmulOp<View>>(OpOf(gpu.plans.Of(DecodePlan(4)), "head/logits").op).out.buffer);
    CHECK(logits(cpu.plans.Of(DecodePlan(4))).layout.dtype == DType::kF32);
  }
}

TEST_CASE("fp32 norms stay ops of their own", "[plan][infer]") {
  Sets sets = kLlama;
  sets.push_back("precision.norms=fp32");
  const AssembledRun run = Plans(sets, Backend::kCuda);
  const StepPlan& plan = run.plans.Of(DecodePlan(1));
  const std::vector<std::string> names = NamesOf(plan);
  CHECK(std::count(names.begin(), names.end(), "norm") == 5);
  for (const Row& row : RowsOf(plan)) CHECK(row.norm == RowNorm::kNone);
}

TEST_CASE("what an op of the step writes is not read early", "[plan][infer]") {
  const AssembledRun run = Plans(GENERATE(kLlama, kExactLlama), Backend::kCuda);
  const StepPlan& plan = run.plans.Of(DecodePlan(1));
  REQUIRE(FindViolations(plan, run.layout.mesh, 1).empty());
  const Row row = RowsOf(plan)[0];
  for (const View Row::*operand : {&Row::weight, &Row::norm_weight}) {
    StepPlan changed = plan;
    auto& ops = changed.bodies[static_cast<size_t>(plan.schedule[0].body)].ops;
    // Over the weight itself, so that it stays defined.
    CastOp<View> write;
    write.x = write.out = row.*operand;
    ops[0].op = write;
    CHECK(!StepWrites(changed).AreConstant(row));
    const auto found = FindViolations(changed, run.layout.mesh, 1);
    CHECK(std::any_of(found.begin(), found.end(), [](const Violation& v) {
      return v.message.find("reads early what an op of the step writes") != std::string::npos;
    }));
    MarkConstants(&changed);
    CHECK(!std::get<Row>(ops[1].op).constant);
  }
  // What is no state shares its bytes with others, whoever writes it.
  StepPlan shared = plan;
  shared.buffer(row.weight.buffer).scope = BufferScope::kMicrobatch;
  CHECK(!StepWrites(shared).AreConstant(row));
  CHECK(StepWrites(plan).AreConstant(row));
}

TEST_CASE("decoding along the tensor axis is a chain, with its exchanges", "[plan][infer]") {
  Sets sets = kLlama;
  sets.emplace_back("parallel.tensor=2");
  for (const Backend backend : {Backend::kCuda, Backend::kCpu}) {
    const AssembledRun run = Plans(sets, backend, 2);
    for (const std::string& name : {DecodePlan(1), DecodePlan(4)}) {
      INFO(name);
      const StepPlan& plan = run.plans.Of(name);
      CHECK(std::any_of(StepOf(plan).begin(), StepOf(plan).end(), [](const PlanOp& op) {
        return op.stream == StreamId::kExchange;
      }));
      CHECK(IsChain(plan, plan.schedule));
      CHECK_FALSE(IsChain(plan, plan.prologue));
    }
  }
}

TEST_CASE("products of one row in order read early what no op of the step writes",
          "[plan][infer]") {
  using Product = MatmulOp<View>;
  const AssembledRun run = Plans(Exact(kGpt2), Backend::kCuda);
  const auto products = [&](const std::string& name) {
    std::vector<Product> found;
    for (const Body& body : run.plans.Of(name).bodies)
      for (const PlanOp& op : body.ops)
        if (const auto* product = std::get_if<Product>(&op.op)) found.push_back(*product);
    return found;
  };
  REQUIRE(products(DecodePlan(1)).size() == 4);
  for (const Product& product : products(DecodePlan(1))) CHECK(product.constant);
  for (const Product& product : products(DecodePlan(4))) CHECK(!product.constant);

  StepPlan changed = run.plans.Of(DecodePlan(1));
  REQUIRE(FindViolations(changed, run.layout.mesh, 1).empty());
  const Product product = products(DecodePlan(1))[0];
  auto& ops = changed.bodies[static_cast<size_t>(changed.schedule[0].body)].ops;
  CastOp<View> write;
  write.x = write.out = product.b;
  ops[0].op = write;
  CHECK(!StepWrites(changed).AreConstant(product));
  const auto found = FindViolations(changed, run.layout.mesh, 1);
  CHECK(std::any_of(found.begin(), found.end(), [](const Violation& v) {
    return v.message.find("reads early what an op of the step writes") != std::string::npos;
  }));
  MarkConstants(&changed);
  for (const PlanOp& op : ops)
    if (const auto* of = std::get_if<Product>(&op.op))
      CHECK(of->constant == (of->b.buffer != product.b.buffer));
}

TEST_CASE("what another op of the step writes is not where attention finds its rows",
          "[plan][infer]") {
  using Attention = CachedAttentionOp<View>;
  const AssembledRun run = Plans(kLlama, Backend::kCuda);
  for (const std::string& name : {DecodePlan(1), DecodePlan(4), PrefillPlan(16)}) {
    INFO(name);
    const StepPlan& plan = run.plans.Of(name);
    REQUIRE(FindViolations(plan, run.layout.mesh, 1).empty());
    const auto& ops = StepOf(plan);
    const auto found = std::find_if(ops.begin(), ops.end(), [](const PlanOp& op) {
      return std::holds_alternative<Attention>(op.op);
    });
    REQUIRE(found != ops.end());
    const auto& attention = std::get<Attention>(found->op);
    CHECK(StepWrites(plan).FindsItsCache(attention));
    for (const View Attention::*operand :
         {&Attention::at, &Attention::slots, &Attention::pages, &Attention::cache}) {
      StepPlan changed = plan;
      CastOp<View> write;
      write.x = write.out = attention.*operand;
      changed.bodies[static_cast<size_t>(plan.schedule[0].body)].ops[0].op = write;
      CHECK(!StepWrites(changed).FindsItsCache(attention));
      const auto violations = FindViolations(changed, run.layout.mesh, 1);
      CHECK(std::any_of(violations.begin(), violations.end(), [](const Violation& v) {
        return v.message.find("reads early what another op of the step writes") !=
               std::string::npos;
      }));
    }
    // A cache that two runs of the body write is not only what earlier steps have left.
    StepPlan twice = plan;
    twice.schedule.push_back(twice.schedule.front());
    CHECK(!StepWrites(twice).FindsItsCache(attention));
  }
}

}  // namespace
}  // namespace millrace
