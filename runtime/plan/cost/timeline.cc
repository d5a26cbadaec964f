#include "runtime/plan/cost/timeline.h"

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"

namespace millrace {
namespace {

struct Cost {
  double fixed = 0;                          // seconds that nothing slows: start, gap
  double work = 0;                           // seconds alone
  double link = 0, network = 0, device = 0;  // shares of each while it works
  double heat = 0;                           // OpEstimate's
  bool peers = false;                        // OpEstimate's
  bool clocked = false;                      // a slower clock makes it slower
};

Cost TimeOf(const OpEstimate& e, const Machine& machine) {
  const double work = e.seconds - e.start, each = work > 0 ? 1 / work : 0;
  return {e.start + (e.wire_bytes == 0 ? machine.op_gap : 0),
          work,
          e.link * each,
          e.network * each,
          e.device * each,
          e.heat,
          e.peers,
          e.bound == Bound::kArithmetic};
}

constexpr double kNotYet = std::numeric_limits<double>::infinity();

// An op in flight on its stream.
struct Running {
  bool any = false;
  size_t op = 0;
  double fixed = 0, work = 0;  // seconds left, at full speed
  // Over peers' memory, and products ran when it began to move bytes.
  bool squeezed = false;
};

class Simulation {
 public:
  Simulation(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh,
             const Machine& machine)
      : plan_(plan), entries_(entries), machine_(machine), costs_(plan.bodies.size()) {
    CostModel model(mesh, machine);
    for (const Entry& entry : entries) {
      std::vector<Cost>& costs = costs_[static_cast<size_t>(entry.body)];
      const Body& body = BodyOf(entry);
      first_.push_back(line_.ops.size());
      for (size_t o = 0; o < body.ops.size(); ++o)
        line_.ops.push_back({static_cast<int32_t>(first_.size() - 1), static_cast<int32_t>(o),
                             body.ops[o].stream, kNotYet, kNotYet});
      if (!costs.empty()) continue;
      for (const PlanOp& op : body.ops) costs.push_back(TimeOf(model.Of(op.op), machine));
    }
    first_.push_back(line_.ops.size());
    waits_.resize(line_.ops.size());
    for (size_t e = 0; e < entries.size(); ++e)
      for (const Edge& edge : entries[e].edges)
        waits_[first_[e] + static_cast<size_t>(edge.to_op)].push_back(
            first_[static_cast<size_t>(edge.from_entry)] + static_cast<size_t>(edge.from_op));
  }

  Timeline Run(StreamJoin join) {
    Once(join);
    double heat = 0, clocked = 0;
    for (size_t i = 0; i < line_.ops.size(); ++i) {
      heat += CostOf(i).heat;
      if (CostOf(i).clocked) clocked += CostOf(i).work;
    }
    // The clock falls until the step lasts as long as the power cap asks for its work.
    for (int round = 0; round < kRounds && clocked > 0 && now_ < heat * (1 - kClose); ++round) {
      slow_ += (heat - now_) / clocked;
      Once(join);
    }
    AttributeIdleTime();
    line_.seconds = now_;
    return std::move(line_);
  }

 private:
  // More are not needed: a step is nearly linear in the time of its products.
  static constexpr int kRounds = 4;
  static constexpr double kClose = 1e-4;

  void Once(StreamJoin join) {
    now_ = 0;
    line_.busy.fill(0);
    for (SimulatedOp& op : line_.ops) op.begin = op.end = kNotYet;
    if (!machine_.concurrent_streams) {
      for (size_t i = 0; i < line_.ops.size(); ++i) {
        line_.ops[i].begin = now_;
        End(i, now_ + CostOf(i).fixed + WorkOf(i));
      }
    } else if (join == StreamJoin::kStepEnd) {
      RunRange(0, line_.ops.size());
    } else {
      for (size_t e = 0; e < entries_.size(); ++e) RunRange(first_[e], first_[e + 1]);
    }
  }

  double WorkOf(size_t i) const { return CostOf(i).work * (CostOf(i).clocked ? slow_ : 1); }

  const Body& BodyOf(const Entry& entry) const { return plan_.body(entry); }
  const Cost& CostOf(size_t i) const {
    const SimulatedOp& op = line_.ops[i];
    return costs_[static_cast<size_t>(entries_[static_cast<size_t>(op.entry)].body)]
                 [static_cast<size_t>(op.op)];
  }

  void End(size_t i, double at) {
    SimulatedOp& op = line_.ops[i];
    op.end = now_ = at;
    line_.busy[static_cast<size_t>(op.stream)] += op.end - op.begin;
  }

  bool Ready(size_t i) const {
    return std::all_of(waits_[i].begin(), waits_[i].end(),
                       [&](size_t wait) { return line_.ops[wait].end < kNotYet; });
  }

  // Of its own speed, what a collective reaches where the links are free.
  double Reach(const Running& r, bool kernels) const {
    if (kernels) return machine_.collective_beside;
    return r.squeezed ? machine_.collective_begun : 1;
  }

  // How fast each stream's op works: 1 alone.
  std::array<double, kStreams> Speeds() const {
    const auto works = [](const Running& r) { return r.any && r.fixed <= 0; };
    double device = 0;
    for (const Running& r : running_)
      if (works(r)) device += CostOf(r.op).device;
    double link = 0, network = 0;
    for (const Running& r : running_) {
      if (!works(r)) continue;
      link += CostOf(r.op).link * Reach(r, device > 0);
      network += CostOf(r.op).network * Reach(r, device > 0);
    }
    const double left = link + network > 0 ? 1 - machine_.collective_share : 1;
    std::array<double, kStreams> speeds;
    speeds.fill(1);
    for (size_t s = 0; s < speeds.size(); ++s) {
      if (!works(running_[s])) continue;
      const Cost& cost = CostOf(running_[s].op);
      if (cost.link > 0) speeds[s] = std::min(speeds[s], 1 / std::max(1.0, link));
      if (cost.network > 0) speeds[s] = std::min(speeds[s], 1 / std::max(1.0, network));
      if (cost.link > 0 || cost.network > 0) speeds[s] *= Reach(running_[s], device > 0);
      if (cost.device > 0)
        speeds[s] =
            std::min(speeds[s], left / (machine_.kernels_share ? std::max(1.0, device) : 1));
    }
    return speeds;
  }

  // Products and attention fill a multiprocessor; other kernels leave room beside them.
  bool ProductsWork() const {
    return std::any_of(running_.begin(), running_.end(), [&](const Running& r) {
      return r.any && r.fixed <= 0 && CostOf(r.op).clocked;
    });
  }

  // To the next moment at which an op ends or a collective begins to move bytes.
  void Advance() {
    const bool products = ProductsWork();
    const std::array<double, kStreams> speeds = Speeds();
    const auto left = [&](size_t s) {
      const Running& r = running_[s];
      return r.fixed > 0 ? r.fixed : r.work / speeds[s];
    };
    double step = kNotYet;
    for (size_t s = 0; s < running_.size(); ++s)
      if (running_[s].any) step = std::min(step, left(s));
    const double then = now_ + step;
    for (size_t s = 0; s < running_.size(); ++s) {
      Running& r = running_[s];
      if (!r.any) continue;
      const bool over = left(s) <= step * (1 + 1e-12);
      if (r.fixed > 0 && over) r.squeezed = products && CostOf(r.op).peers;
      (r.fixed > 0 ? r.fixed : r.work) -= over ? kNotYet : step * (r.fixed > 0 ? 1 : speeds[s]);
      if (r.fixed > 0 || r.work > 0) continue;
      r.any = false;
      End(r.op, then);
    }
    now_ = then;
  }

  // Ops [begin, end), after everything placed before has ended.
  void RunRange(size_t begin, size_t end) {
    std::array<std::vector<size_t>, kStreams> queue;  // in reverse
    for (size_t i = end; i-- > begin;) queue[static_cast<size_t>(line_.ops[i].stream)].push_back(i);
    for (size_t left = end - begin; left > 0;) {
      bool any = false;
      for (size_t s = 0; s < queue.size(); ++s) {
        Running& r = running_[s];
        if (!r.any && !queue[s].empty() && Ready(queue[s].back())) {
          const size_t i = queue[s].back();
          queue[s].pop_back();
          --left;
          line_.ops[i].begin = now_;
          r = {true, i, CostOf(i).fixed, WorkOf(i), false};
        }
        any = any || r.any;
      }
      MR_CHECK(any, "{} ops of the plan wait for each other", left);
      Advance();
    }
    while (std::any_of(running_.begin(), running_.end(), [](const Running& r) { return r.any; }))
      Advance();
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
  std::array<Running, kStreams> running_;   // by stream
  double slow_ = 1;                         // by which the power cap stretches what is clocked
  double now_ = 0;                          // all before has been simulated
  Timeline line_;
};

}  // namespace

Timeline Simulate(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh,
                  const Machine& machine, StreamJoin join) {
  return Simulation(plan, entries, mesh, machine).Run(join);
}

}  // namespace millrace
