#include "runtime/plan/cost/timeline.h"

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"

namespace millrace {
namespace {

struct Cost {
  double seconds = 0;
  bool uses_link = false;
};

constexpr double kNotYet = std::numeric_limits<double>::infinity();

class Simulation {
 public:
  Simulation(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh,
             const Machine& machine)
      : plan_(plan), entries_(entries), machine_(machine), costs_(plan.bodies.size()) {
    for (const Entry& entry : entries) {
      std::vector<Cost>& costs = costs_[static_cast<size_t>(entry.body)];
      const Body& body = BodyOf(entry);
      first_.push_back(line_.ops.size());
      for (size_t o = 0; o < body.ops.size(); ++o)
        line_.ops.push_back({static_cast<int32_t>(first_.size() - 1), static_cast<int32_t>(o),
                             body.ops[o].stream, kNotYet, kNotYet});
      if (!costs.empty()) continue;
      for (const PlanOp& op : body.ops) {
        const OpEstimate estimate = Estimate(op.op, mesh, machine);
        const bool link = estimate.wire_bytes > 0;
        costs.push_back({estimate.seconds + (link ? 0 : machine.op_gap), link});
      }
    }
    first_.push_back(line_.ops.size());
    waits_.resize(line_.ops.size());
    for (size_t e = 0; e < entries.size(); ++e)
      for (const Edge& edge : entries[e].edges)
        waits_[first_[e] + static_cast<size_t>(edge.to_op)].push_back(
            first_[static_cast<size_t>(edge.from_entry)] + static_cast<size_t>(edge.from_op));
  }

  Timeline Run(StreamJoin join) {
    if (!machine_.concurrent_streams) {
      for (size_t i = 0; i < line_.ops.size(); ++i) Place(i, now_);
    } else if (join == StreamJoin::kStepEnd) {
      RunRange(0, line_.ops.size());
    } else {
      for (size_t e = 0; e < entries_.size(); ++e) RunRange(first_[e], first_[e + 1]);
    }
    AttributeIdleTime();
    line_.seconds = now_;
    return std::move(line_);
  }

 private:
  const Body& BodyOf(const Entry& entry) const {
    return plan_.bodies[static_cast<size_t>(entry.body)];
  }
  const Cost& CostOf(size_t i) const {
    const SimulatedOp& op = line_.ops[i];
    return costs_[static_cast<size_t>(entries_[static_cast<size_t>(op.entry)].body)]
                 [static_cast<size_t>(op.op)];
  }

  void Place(size_t i, double begin) {
    SimulatedOp& op = line_.ops[i];
    const Cost& cost = CostOf(i);
    op.begin = begin;
    op.end = begin + cost.seconds;
    line_.busy[static_cast<size_t>(op.stream)] += cost.seconds;
    if (cost.uses_link) link_free_ = op.end;
    now_ = std::max(now_, op.end);
  }

  // When the op can start, given what has been placed; kNotYet while an op
  // that it waits for has not.
  double ReadyAt(size_t i, double stream_free) const {
    double at = stream_free;
    for (size_t wait : waits_[i]) at = std::max(at, line_.ops[wait].end);
    return CostOf(i).uses_link ? std::max(at, link_free_) : at;
  }

  // Ops [begin, end), after everything placed before has ended. Always the op that can start
  // earliest next, so that the link serves collectives in the order in which they become ready.
  void RunRange(size_t begin, size_t end) {
    std::array<std::vector<size_t>, kStreams> queue;  // in reverse
    for (size_t i = end; i-- > begin;) queue[static_cast<size_t>(line_.ops[i].stream)].push_back(i);
    std::array<double, kStreams> free;
    free.fill(now_);
    for (size_t left = end - begin; left > 0; --left) {
      size_t best = 0;
      double best_at = kNotYet;
      for (size_t s = 0; s < queue.size(); ++s) {
        if (queue[s].empty()) continue;
        const double at = ReadyAt(queue[s].back(), free[s]);
        if (at < best_at) {
          best_at = at;
          best = s;
        }
      }
      MR_CHECK(best_at < kNotYet, "{} ops of the plan wait for each other", left);
      const size_t i = queue[best].back();
      queue[best].pop_back();
      Place(i, best_at);
      free[best] = line_.ops[i].end;
    }
  }

  void AttributeIdleTime() {
    double compute_end = 0;
    for (size_t i = 0; i < line_.ops.size(); ++i) {
      const SimulatedOp& op = line_.ops[i];
      if (op.stream != StreamId::kCompute) continue;
      Attribute(compute_end, op.begin, i);
      compute_end = op.end;
    }
    Attribute(compute_end, now_, line_.ops.size());
  }

  // Compute had nothing to run from `from` until `until`, before op `i` (the number of ops: at the
  // end). The wait is for the op on another stream that ended last within it, before i was issued.
  void Attribute(double from, double until, size_t i) {
    if (until <= from) return;
    if (!machine_.concurrent_streams) {
      for (size_t j = i; j-- > 0 && line_.ops[j].stream != StreamId::kCompute;)
        line_.exposed[static_cast<size_t>(line_.ops[j].stream)] +=
            line_.ops[j].end - line_.ops[j].begin;
      return;
    }
    StreamId blamed = StreamId::kGather;
    double latest = -1;
    const auto consider = [&](const SimulatedOp& op) {
      if (op.stream == StreamId::kCompute || op.end <= latest) return;
      latest = op.end;
      blamed = op.stream;
    };
    if (i < line_.ops.size() && !waits_[i].empty())
      for (size_t wait : waits_[i]) consider(line_.ops[wait]);
    else
      for (size_t j = 0; j < i; ++j) consider(line_.ops[j]);
    line_.exposed[static_cast<size_t>(blamed)] += until - from;
  }

  const StepPlan& plan_;
  const std::vector<Entry>& entries_;
  const Machine& machine_;
  std::vector<std::vector<Cost>> costs_;    // by body and op
  std::vector<size_t> first_;               // by entry: index of its first op in line_.ops
  std::vector<std::vector<size_t>> waits_;  // by op: the ops that its edges name
  double now_ = 0;                          // end of the last op placed
  double link_free_ = 0;
  Timeline line_;
};

}  // namespace

Timeline Simulate(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh,
                  const Machine& machine, StreamJoin join) {
  return Simulation(plan, entries, mesh, machine).Run(join);
}

}  // namespace millrace
