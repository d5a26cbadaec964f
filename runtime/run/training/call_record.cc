#include "runtime/run/training/call_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/quantile.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/recorded_step.h"
#include "runtime/run/checkpoint/saved_state.h"
#include "runtime/run/memory_use.h"

namespace millrace {
namespace {

// Steps whose median says how long the others will take.
constexpr size_t kRecentSteps = 20;

NamedCounts Named(const StepCounters& counters) {
  const nlohmann::ordered_json json = CountersJson(counters);
  NamedCounts named;
  for (const auto& [name, count] : json.items()) named.emplace_back(name, count.get<int64_t>());
  return named;
}

int64_t WireBytes(const CommCounters& c) {
  return c.gathered_bytes + c.reduced_bytes + c.all_reduced_bytes + c.exchanged_bytes;
}

StepCounters operator-(const StepCounters& a, const StepCounters& b) {
  return {a.kernels - b.kernels, a.comm - b.comm, a.graph_launches - b.graph_launches};
}

StepCounters PredictedCounters(const PlanCounters& step, int64_t steps, int64_t launches) {
  return {{steps * step.concatenated_bytes, steps * step.cast_bytes, steps * step.copied_bytes},
          {steps * step.all_gathers, steps * step.reduce_scatters, steps * step.all_reduces,
           steps * step.gathered_bytes, steps * step.reduced_bytes, steps * step.all_reduced_bytes,
           steps * step.all_to_alls, steps * step.exchanged_bytes},
          launches};
}

}  // namespace

CallRecord::CallRecord(Session& session, const Machine& machine, int64_t global_batch)
    : session_(session),
      machine_(machine),
      basis_(MfuBasisOf(session, machine)),
      global_batch_(global_batch) {}

void CallRecord::BeginAfter(int64_t step, int64_t samples) {
  first_step_ = step;
  samples_before_ = samples;
  counters_before_ = session_.engine().counters();
  const RecordedStep* const recorded = session_.engine().recorded_step();
  captured_before_ = recorded != nullptr && recorded->issued();
  losses_.clear();
  otherwise_.clear();
  again_.clear();
}

void CallRecord::GoBackTo(int64_t step, int64_t samples) {
  if (step <= first_step_) return BeginAfter(step, samples);
  MR_CHECK_LE(step, last_step(), "a roll-back to a step that was not done");
  losses_.resize(static_cast<size_t>(step - first_step_));
  for (std::vector<int64_t>* steps : {&otherwise_, &again_})
    std::erase_if(*steps, [step](int64_t undone) { return undone > step; });
}

namespace {

PolicyFigures PolicyMeansOf(std::span<const float> tally) {
  const auto mean = [&](size_t sum) {
    return static_cast<double>(tally[sum]) / static_cast<double>(tally[PolicyTally::kTargets]);
  };
  return {.clip_fraction = mean(PolicyTally::kClipped),
          .ratio = mean(PolicyTally::kRatios),
          .kl = mean(PolicyTally::kDivergence)};
}

// Values of one of the engine's tallies.
std::span<const float> ValuesOf(const Engine& engine, const View& tally) {
  return engine.tallies().subspan(static_cast<size_t>(tally.offset),
                                  static_cast<size_t>(tally.layout.numel()));
}

}  // namespace

std::optional<PolicyFigures> PolicyFiguresOf(const Engine& engine) {
  if (engine.tallies().empty()) return std::nullopt;
  for (const auto& [block, kind, view] : engine.plans().Of("train").tallies)
    if (kind == TallyKind::kPolicy) return PolicyMeansOf(ValuesOf(engine, view));
  return std::nullopt;
}

void DescribeTallies(const Engine& engine, StepReport& report) {
  report.policy = PolicyFiguresOf(engine);
  if (engine.tallies().empty()) return;
  std::vector<RouterTally> routers;
  std::vector<float> of_routers;
  for (const auto& [block, kind, view] : engine.plans().Of("train").tallies) {
    if (kind == TallyKind::kPolicy) continue;
    const auto values = ValuesOf(engine, view);
    routers.push_back({block, view.layout.numel() / 2});
    of_routers.insert(of_routers.end(), values.begin(), values.end());
  }
  report.routers = RouterFiguresOf(routers, of_routers);
}

std::span<const float> OverflowsOf(const Engine& engine) {
  return engine.tallies().last(engine.plans().Of("train").overflows.size());
}

StepReport CallRecord::Add(const Batch& batch, const StepPlan& plan, double enqueue_us,
                           const StepScalars& scalars) {
  const int64_t step = batch.step;
  MR_CHECK_EQ(step, last_step() + 1, "the step that was collected");
  const Config& config = session_.config();
  const auto now = Clock::now();
  StepReport report;
  report.step = step;
  report.steps = config.train.steps;
  report.loss = scalars.loss;
  report.grad_norm = scalars.grad_norm;
  report.lr = scalars.lr;
  report.tokens = SamplesAfter(step) * config.model.seq_len;
  // Steps in flight end together for a host that waited for something else; the
  // device knows when each ended.
  report.step_ms = session_.engine().lag() > 0
                       ? session_.engine().step_ms()
                       : std::chrono::duration<double, std::milli>(now - last_collected_).count();
  report.enqueue_us = enqueue_us;
  last_collected_ = now;
  report.tokens_per_s =
      static_cast<double>(session_.batcher().valid_tokens()) / (report.step_ms / 1e3);
  if (basis_.peak_flops_per_rank > 0)
    report.mfu = report.tokens_per_s / session_.world() * basis_.flops_per_token /
                 basis_.peak_flops_per_rank;
  report.peak_bytes = peak_bytes_ = std::max(peak_bytes_, MemoryBytes(session_.device()));
  report.skipped = scalars.skipped;
  report.applied = scalars.applied != 0;
  if (config.precision.compute == PrecisionConfig::Format::kFp16)
    report.scaling = {scalars.loss_scale, scalars.scale_downs};
  if (scalars.max_loss > 0) report.max_loss = scalars.max_loss;
  report.data_step = batch.number;
  report.again = batch.again;
  DescribeTallies(session_.engine(), report);
  report.records_loads = config.run.RecordsLoads(step, config.train.steps);
  if (batch.again) again_.push_back(step);
  if (!plan.overflows.empty())
    for (const float count : OverflowsOf(session_.engine()))
      report.dropped_pairs += static_cast<int64_t>(count);
  report.dropped_so_far = dropped_ += report.dropped_pairs;
  report.balanced_gate = config.model.BalancedGate();
  step_ms_.push_back(report.step_ms);
  const auto recent = static_cast<std::ptrdiff_t>(std::min(step_ms_.size(), kRecentSteps));
  report.eta_s = Median({step_ms_.end() - recent, step_ms_.end()}) / 1e3 *
                 static_cast<double>(report.steps - report.step);
  losses_.push_back(report.loss);
  return report;
}

void CallRecord::Describe(TrainResult& result) const {
  result.first_step = first_step();
  result.last_step = last_step();
  result.first_loss = losses_.empty() ? std::nullopt : std::optional(losses_.front());
  result.last_loss = losses_.empty() ? std::nullopt : std::optional(losses_.back());
}

Summary CallRecord::Summarize(const TrainResult& result, double seconds) {
  const int64_t steps = last_step() - first_step();
  const int64_t recorded = steps - static_cast<int64_t>(otherwise_.size());
  const int64_t peak_bytes = std::max(peak_bytes_, MemoryBytes(session_.device()));
  Summary summary =
      SummaryOf(session_, machine_,
                {.steps = steps,
                 .again = static_cast<int64_t>(again_.size()),
                 .launches = PredictGraphLaunches(session_, recorded, captured_before_),
                 .counters_before = counters_before_,
                 .step_ms = Median(step_ms_),
                 .peak_bytes = peak_bytes});
  summary.result = result;
  summary.resident_before_arena = session_.memory_marks().before_arena;
  summary.seconds = seconds;
  return summary;
}

Summary SummaryOf(Session& session, const Machine& machine, const StepsDone& done) {
  Summary summary;
  summary.plan_hash = PlanHash(session.run().plans.Of("train"));
  summary.tuning_hash = session.tuning();
  summary.counters = Named(session.engine().counters());
  summary.resident_peak = done.peak_bytes;
  summary.world = session.world();
  summary.peer_memory = session.peer_memory();
  summary.balanced_gate = session.config().model.BalancedGate();
  const auto tokens = static_cast<double>(session.batcher().valid_tokens());
  const StepCounters measured = session.engine().counters() - done.counters_before;
  summary.measured = {Named(measured),
                      WireBytes(measured.comm),
                      session.engine().arena_bytes(),
                      done.step_ms,
                      tokens / (done.step_ms / 1e3),
                      session.device().UsedBytes() > 0 ? done.peak_bytes.value_or(0) : 0};
  const PlanReport plan = PredictRun(session, machine);
  StepCounters predicted = PredictedCounters(plan.step, done.steps - done.again, done.launches);
  if (session.run().plans.Find(kAgain) != nullptr) {
    const StepCounters again =
        PredictedCounters(PredictRun(session, machine, kAgain).step, done.again, 0);
    predicted.kernels += again.kernels;
    predicted.comm += again.comm;
  }
  summary.predicted = {Named(predicted),     WireBytes(predicted.comm),   plan.memory.run_arena,
                       plan.time.step * 1e3, plan.time.tokens_per_second, plan.memory.device};
  summary.lower_bound_bytes = plan.memory.lower_bound;
  summary.machine = plan.machine.title;
  return summary;
}

}  // namespace millrace
