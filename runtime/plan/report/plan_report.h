// What `millrace plan` tells about a training step, as a plain value: memory, wire, arithmetic,
// time on a named machine. The same figures stand as "predicted" in a run's summary.
//
// Definitions
//   bytes of a class   the most bytes of that class that live at one position of the plan's
//                      timeline (classes peak at different positions);
//                      at_peak: what each class holds at the position where all together are most
//   arena              bytes that one rank allocates for this plan;
//                      run_arena: for all plans of the run, which share one arena
//   lower bound        persistent bytes and the most other bytes that live at one position: no
//                      allocator can do with less
//   wire bytes         sent by one rank in one step, by the formulas of comm/communicator.h
//   model FLOPs        model_flops.h;
//                      op FLOPs: what the plan's ops do, recomputation, padding and element-wise
//                      work included
//   roofline           sum over the ops of their least times (cost_model.h), without gaps and
//                      waiting;
//                      step time: the simulated schedule (timeline.h)
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/plan/cost/cost_model.h"
#include "runtime/plan/cost/timeline.h"
#include "runtime/plan/graph/node_def.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/plan/schedule/recompute.h"

namespace millrace {

struct ModelFigures {
  ModelShape shape;
  int64_t padded_vocab = 0;
  int64_t parameters = 0, matmul_parameters = 0;
};

struct MemoryFigures {
  std::array<int64_t, kBufferClasses> by_class{}, at_peak{};
  int64_t peak_position = 0;  // the first of them
  int64_t arena = 0, run_arena = 0, lower_bound = 0, persistent = 0, parameter_pool = 0,
          gradient_pool = 0;
  // All of a rank's device memory: the run's arena and what is beside it; 0: not known.
  int64_t device = 0;
  int64_t device_has = 0;           // what such a device has for one process; 0: not known
  int64_t checkpoint = 0;           // master weights and both moments, all ranks together
  int64_t checkpoint_per_rank = 0;  // what one rank of a replica writes
  int64_t received = 0;  // the largest buffer for other ranks' rows of experts; 0: there is none
};

// Of what the backward computes again.
struct RecomputeFigures {
  RecomputeCounts counts;
  bool searched = false;    // memory.recompute=auto
  int64_t saved_bytes = 0;  // searched: by how much it makes the arena smaller
  KeptExchanges exchanges;  // of a microbatch
  int64_t ops = 0;          // in one step
  double seconds = 0;       // of these ops
};

struct TimeFigures {
  double roofline = 0, step = 0;                   // seconds
  std::array<double, kStreams> busy{}, exposed{};  // seconds per stream; see timeline.h
  double tokens_per_second = 0;                    // all ranks
  double mfu_causal = 0, mfu_full = 0;
  double peak_flops = 0;  // what MFU divides by
};

// All ops of one kind in one step.
struct KindFigures {
  std::string kind;
  int64_t count = 0;
  OpEstimate sum;  // bound: of the kind's longest op
};

// One op of a body.
struct OpFigures {
  std::string body, kind, label;
  StreamId stream = StreamId::kCompute;
  int64_t runs = 0;  // per step
  OpEstimate each;
};

struct PlanReport {
  std::string kind, execution, hash;
  ModelFigures model;
  int world = 1;
  Mesh mesh;
  BatchShape shape;  // one microbatch on one data rank
  int accumulate = 1;
  int64_t tokens_per_step = 0;                 // all ranks
  std::map<std::string, std::string> options;  // by config key
  MemoryFigures memory;
  RecomputeFigures recompute;
  PlanCounters step, prologue;
  WirePurposes wire;  // of one step
  double flops_per_token_causal = 0, flops_per_token_full = 0;
  double op_flops = 0;  // one rank, one step
  Machine machine;      // as this run's ranks share it
  TimeFigures time;
  std::vector<KindFigures> kinds;    // longest first
  std::vector<OpFigures> ops;        // bodies in canonical order
  std::vector<std::string> choices;  // lowering and allocation
};

struct ReportInput {
  const ModelSpec& spec;
  const ShardLayout& layout;
  const PlanOptions& options;
  const StepPlan& plan;
  FlopsPerToken flops;     // TrainFlopsPerToken of the model's forward
  const Machine& machine;  // not yet shared: MakePlanReport applies ShareOf
  StreamJoin join = StreamJoin::kStepEnd;
  int64_t other_plans_arena = 0;   // of the run's evaluation and generation plans, the largest
  RecomputeChoice recompute = {};  // that the plan was built with
};

PlanReport MakePlanReport(const ReportInput& input);

// What a run's summary.json puts beside its measured figures, under the same names: counters of one
// step, arena bytes, time on the report's machine.
std::map<std::string, double> PredictedFigures(const PlanReport& report);

}  // namespace millrace
