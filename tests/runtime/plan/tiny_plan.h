// A small model planned for real, and plans written by hand: what the tests of cost,
// timeline and report look at.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/plan/report/plan_report.h"
#include "runtime/plan/schedule/planner.h"

namespace millrace::test {

struct TinyPlan {
  ModelSpec spec;
  ShardLayout layout;
  PlanOptions options;
  StepPlan plan;
  FlopsPerToken flops;
  RecomputeChoice recompute;

  ReportInput Input(const Machine& machine) const {
    return {.spec = spec,
            .layout = layout,
            .options = options,
            .plan = plan,
            .flops = flops,
            .machine = machine,
            .recompute = recompute};
  }
  PlanReport Report(const Machine& machine) const { return MakePlanReport(Input(machine)); }
};

inline TinyPlan PlanFor(const ModelOptions& model_options, Mesh mesh,
                        const PrecisionPolicy& precision, PlanOptions options,
                        LinearEncoding linears = LinearEncoding::kCompute,
                        WeightGather gather = WeightGather::kCompute) {
  const std::unique_ptr<Model> model = MakeModel(model_options);
  TinyPlan tiny{model->spec(), PlanShards(model->spec(), mesh, precision), options, {}, {}, {}};
  ForwardBuilder builder(model->spec(), options.shape, precision.compute, precision.norm_params);
  builder.EncodeLinears(linears);
  model->EmitForward(builder, HeadMode::kTrainLoss);
  SemanticGraph forward = std::move(builder).Finish();
  tiny.flops = TrainFlopsPerToken(forward);
  tiny.recompute = GivenRecompute(forward, Recompute::kNone);
  LowerOptions lower;
  lower.backend = options.backend;
  lower.gather = gather;
  const Program program = Lower(AddGradients(std::move(forward), Recompute::kNone), lower);
  tiny.plan = PlanStep(tiny.layout, PlanStates(tiny.layout, options, {&program}), program, options,
                       "train");
  return tiny;
}

// GPT-2 shaped, `layers` blocks of width 32 over 16 positions.
inline ModelOptions SmallModel(int64_t layers) {
  ModelOptions o;
  o.d_model = 32;
  o.blocks = EqualBlocks(layers, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {.width = 128});
  o.vocab = 100;
  o.seq_len = 16;
  return o;
}

inline PlanOptions SmallBatch(int accumulate) {
  PlanOptions o;
  o.shape = {3, 16};
  o.accumulate = accumulate;
  o.clip = 1;
  o.execution = "graph=off";
  return o;
}

// Round rates: a byte of memory takes 1 s, a byte on the wire 1 s, a FLOP 1 s; no latency, no gaps.
inline Machine SlowMachine() {
  Machine m;
  m.name = "slow";
  m.title = "one of everything per second";
  m.peak_bf16 = m.peak_f32 = m.gemm_bf16 = m.gemm_f32 = m.vector = 1;
  m.memory = m.link = 1;
  return m;
}

inline View Dense(int32_t buffer, DType dtype, std::initializer_list<int64_t> dims) {
  View view;
  view.buffer = BufferId{buffer};
  view.layout = DenseLayout(dtype, dims);
  return view;
}

// An op that reads and writes `seconds` bytes together (even): so many seconds on the slow machine.
inline PlanOp Busy(StreamId stream, int64_t seconds, const std::string& label) {
  CastOp<View> op;
  op.x = Dense(0, DType::kU8, {seconds / 2});
  op.out = Dense(0, DType::kU8, {seconds / 2});
  return {op, stream, label, {}};
}

// A reduce-scatter over two ranks that sends `seconds` bytes and moves 3 * `seconds` in memory.
inline PlanOp Sends(StreamId stream, int64_t seconds, const std::string& label) {
  ReduceScatterOp<View> op;
  op.full = Dense(0, DType::kU8, {2 * seconds});
  op.shard = Dense(0, DType::kU8, {seconds});
  return {op, stream, label, {}};
}

}  // namespace millrace::test
