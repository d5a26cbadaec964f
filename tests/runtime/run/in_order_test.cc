// What inference.exact=true makes of plans for GPUs, and which runs it refuses there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <variant>
#include <vector>

#include "kernels/ops/matmul_key.h"
#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/run/assemble.h"
#include "runtime/run/generate/inference_plans.h"

namespace millrace {
namespace {

using Sets = std::vector<std::string>;

AssembledRun Plans(const Sets& more, Backend backend = Backend::kCuda) {
  Sets sets = {"data.kind=synthetic",    "model.d_model=128",      "model.heads=2",
               "model.vocab=100",        "model.seq_len=32",       "train.micro_batch=2",
               "inference.slots=4",      "inference.decode=[1,4]", "train.accumulate=1",
               "precision.compute=bf16", "inference.prefill=[16]"};
  const bool has_pattern = std::any_of(more.begin(), more.end(), [](const std::string& set) {
    return set.starts_with("model.pattern=");
  });
  if (!has_pattern) sets.push_back("model.layers=2");
  sets.insert(sets.end(), more.begin(), more.end());
  const LoadedConfig loaded =
      LoadConfig({}, sets, {.world = 1, .has_cuda = backend == Backend::kCuda});
  return Assemble(loaded.config, 1, {.backend = backend},
                  {"train", "eval", "score", std::string(kInferencePlans)});
}
Sets With(Sets sets, const std::string& one) {
  sets.push_back(one);
  return sets;
}
const Sets kLlama = {"model.family=llama", "model.kv_heads=1", "model.ffn=96"};
const Sets kGpt2 = {"model.family=gpt2"};

struct Counts {
  int products = 0, attention = 0, cached = 0, draws = 0, rows = 0;
  bool operator==(const Counts&) const = default;
};

// Of ops in order, and of row_linears, which in order are those with a norm.
Counts CountsOf(const StepPlan& plan) {
  Counts counts;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      if (const auto* product = std::get_if<MatmulOp<View>>(&op.op))
        counts.products += product->in_order;
      if (const auto* attention = std::get_if<AttentionOp<View>>(&op.op))
        counts.attention += attention->in_order;
      if (const auto* cached = std::get_if<CachedAttentionOp<View>>(&op.op))
        counts.cached += cached->in_order;
      if (const auto* draw = std::get_if<SampleOp<View>>(&op.op)) counts.draws += draw->in_order;
      if (const auto* row = std::get_if<RowLinearOp<View>>(&op.op)) {
        ++counts.rows;
        counts.products += row->in_order;
      }
    }
  return counts;
}

template <template <class> class Op>
bool IsNowOutOfOrder(StepPlan& plan) {
  for (Body& body : plan.bodies)
    for (PlanOp& op : body.ops)
      if (auto* of = std::get_if<Op<View>>(&op.op); of != nullptr && of->in_order) {
        of->in_order = false;
        return true;
      }
  return false;
}

// Of how many kinds of ops in order a single one that is not gives another hash; all must.
int HashesOfOneChanged(const StepPlan& plan) {
  int changed = 0;
  const auto look = [&]<template <class> class Op>() {
    StepPlan other = plan;
    if (!IsNowOutOfOrder<Op>(other)) return;
    CHECK(PlanHash(other) != PlanHash(plan));
    ++changed;
  };
  look.template operator()<MatmulOp>();
  look.template operator()<RowLinearOp>();
  look.template operator()<AttentionOp>();
  look.template operator()<CachedAttentionOp>();
  look.template operator()<SampleOp>();
  return changed;
}

TEST_CASE("on GPUs inference.exact puts the forward of each plan in order", "[plan][infer]") {
  const auto [base, joined] =
      GENERATE(table<Sets, bool>({{kLlama, true}, {kGpt2, true}, {kLlama, false}, {kGpt2, false}}));
  // One row's norms of bf16 are joined to products.
  const Sets model = With(base, joined ? "precision.norms=compute" : "precision.norms=fp32");
  const AssembledRun exact = Plans(With(model, "inference.exact=true")), fast = Plans(model);
  // Four linears a layer, and the logits.
  for (const char* name : {"train", "eval", "score"})
    CHECK(CountsOf(exact.plans.Of(name)) == Counts{.products = 9, .attention = 2});
  for (const std::string& name : {PrefillPlan(16), DecodePlan(1), DecodePlan(4)})
    CHECK(CountsOf(exact.plans.Of(name)) ==
          Counts{.products = 9,
                 .cached = 2,
                 .draws = 1,
                 .rows = joined && name == DecodePlan(1) ? 5 : 0});
  // It is seen in each plan, by each op alone, and none of it is there without.
  for (const StepPlan& plan : exact.plans.plans)
    CHECK(PlanHash(plan) != PlanHash(fast.plans.Of(plan.name)));
  CHECK(HashesOfOneChanged(exact.plans.Of("train")) == 2);
  CHECK(HashesOfOneChanged(exact.plans.Of(DecodePlan(1))) == (joined ? 4 : 3));
  for (const StepPlan& plan : fast.plans.plans)
    CHECK(CountsOf(plan) == Counts{.rows = CountsOf(plan).rows});
  CHECK(CountsOf(fast.plans.Of(DecodePlan(1))).rows == 9);
  // CPUs have rows like those of a whole product.
  const AssembledRun cpu = Plans(With(model, "inference.exact=true"), Backend::kCpu);
  for (const StepPlan& plan : cpu.plans.plans) CHECK(CountsOf(plan) == Counts{});
}

TEST_CASE("no library is asked for a product in order, and none is tuned", "[plan]") {
  const auto shape_of = [](const View& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  };
  int asked = 0;
  const AssembledRun exact = Plans(With(kGpt2, "inference.exact=true"));
  for (const Body& body : exact.plans.Of("train").bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* product = std::get_if<MatmulOp<View>>(&op.op)) {
        const auto shape = ConvertOp<MatmulOp, View, Shape>(*product, shape_of);
        CHECK(KeyOf(shape).has_value() == !product->in_order);
        CHECK((product->in_order && product->scratch) == false);
        asked += !product->in_order;
      }
  CHECK(asked == 18);  // two gradients of each
}

TEST_CASE("a draw reads the product's own logits where they are in order", "[plan][infer]") {
  const AssembledRun exact = Plans(With(kLlama, "inference.exact=true"));
  for (const Body& body : exact.plans.Of(DecodePlan(1)).bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* draw = std::get_if<SampleOp<View>>(&op.op))
        CHECK(draw->logits.layout == DenseLayout(DType::kBF16, {1, 128}));
}

TEST_CASE("what GPUs have no exact bits for is refused by its key", "[plan][infer]") {
  using Catch::Matchers::Contains;
  const auto refusal = [](Sets sets) -> std::string {
    sets.push_back("inference.exact=true");
    try {
      static_cast<void>(Plans(sets));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  CHECK(refusal(kLlama) == "no error");
  CHECK(refusal(With(kLlama, "model.head_dim=128")) == "no error");
  CHECK(refusal({"model.family=qwen3", "model.kv_heads=1", "model.ffn=96", "model.head_dim=64"}) ==
        "no error");
  CHECK_THAT(refusal(With(kLlama, "model.head_dim=32")), Contains("heads have 32 elements"));
  CHECK_THAT(refusal(With(kLlama, "precision.compute=fp32")), Contains("precision.compute fp32"));
  CHECK_THAT(refusal(With(kLlama, "model.ffn=100")), Contains("model.ffn 100"));
  CHECK_THAT(refusal(With(kLlama, "model.attention.window=8")),
             Contains("model.attention.window 8"));
  CHECK_THAT(refusal({"model.family=qwen3_moe", "model.kv_heads=1", "model.head_dim=64",
                      "model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=32"}),
             Contains("model.moe.experts"));
  CHECK_THAT(refusal({"model.family=nemotron_h", "model.pattern=M*-", "model.kv_heads=1",
                      "model.head_dim=64", "model.ffn=96", "model.mamba.heads=2",
                      "model.mamba.head_dim=64", "model.mamba.state=16", "model.mamba.chunk=16"}),
             Contains("Mamba-2"));
  const Sets trunk = {"model.family=nemotron_h", "model.pattern=*-", "model.kv_heads=1",
                      "model.head_dim=64",       "model.ffn=96",     "model.moe.experts=4",
                      "model.moe.top_k=2",       "model.moe.ffn=32", "model.mtp.depth=1"};
  CHECK_THAT(refusal(With(trunk, "model.mtp.pattern=*E")), Contains("model.moe.experts"));
}

}  // namespace
}  // namespace millrace
